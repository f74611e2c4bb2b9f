"""``plain``: stem, slot 0, block 1, slot 1, ..., head; block i is relu(W x), without a residual connection.

Shapes: R rows, B samples, D width.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from simic.hosts.batched.block_trunk import Block
from simic.hosts.batched.conv import product
from simic.hosts.batched.sizes import BLOCKS, WIDTH
from simic.hosts.batched.trunk import TrunkPart
from simic.hosts.interfaces import HostRecipe
from simic.hosts.trunks.mlp import PairsTrunk, chain, head, stem

__all__ = ["TRUNK", "PlainTrunk", "plain"]


def _parts(width: int, blocks: int) -> tuple[TrunkPart, ...]:
    scale = float(np.sqrt(2.0 / width))
    middle = [TrunkPart((width, width), scale, layer=1 + block, depth=1 + block) for block in range(blocks)]
    return (stem(width), *middle, head(width, blocks))


class PlainTrunk(PairsTrunk):
    """The plain trunk. Its blocks have no hidden units, so a recipe's numbers of them have no effect."""

    topology = chain(WIDTH, BLOCKS)
    parts = _parts(WIDTH, BLOCKS)
    per_block = 1

    def __init__(self, recipes: Sequence[HostRecipe]) -> None:
        super().__init__(recipes)
        self.hidden: NDArray[np.float64] = np.full((len(recipes), len(self.topology.sites) - 1), np.nan)

    def block(self, index: int, parts: Sequence[Tensor], x: Tensor, out: Tensor | None = None) -> Tensor:
        return product(x, parts[1 + index], out=out).relu_()

    def enter(self, index: int, parts: Sequence[Tensor], x: Tensor, out: Tensor) -> Block:
        matrix = parts[1 + index]
        # Scales of the output and seeds overwrite ``out``, and the backward pass needs what the ReLU gave.
        return _Block(x, product(x, matrix, out=out).relu_().clone(), matrix)


class _Block(NamedTuple):
    x: Tensor
    unit: Tensor
    """[R, B, D]: relu(W x)."""
    matrix: Tensor

    def pull(self, g: Tensor, hosts: int, out: Sequence[Tensor]) -> Tensor:
        g = torch.ops.aten.threshold_backward(g, self.unit, 0.0)
        product(self.x[:hosts].transpose(1, 2), g[:hosts], out=out[0])
        return product(g, self.matrix.transpose(1, 2))


def plain(width: int, blocks: int) -> type[PlainTrunk]:
    """Return the trunk with other sizes, for a family of its own."""
    return type(
        f"Plain{width}x{blocks}", (PlainTrunk,), {"topology": chain(width, blocks), "parts": _parts(width, blocks)}
    )


TRUNK = PlainTrunk
