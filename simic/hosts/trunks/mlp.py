"""``mlp``: stem, slot 0, block 1, slot 1, ..., head; block i is x + V relu(W x).

The default has 24 features and two blocks. Shapes: R rows, B samples, D width, M hidden.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from simic.contracts.state import LayerKind
from simic.hosts.batched.block_trunk import BlockTrunk
from simic.hosts.batched.conv import product
from simic.hosts.batched.sizes import BLOCKS, CLASSES, DIGIT, HIDDEN, INPUTS, WIDTH
from simic.hosts.batched.trunk import TrunkPart
from simic.hosts.interfaces import HostRecipe, HostTopology, Pairs, Site

__all__ = ["TRUNK", "MlpTrunk", "PairsTrunk", "chain", "head", "mlp", "stem"]


def chain(width: int, blocks: int) -> HostTopology:
    """Return a chain of layers of ``width`` features: stem, blocks and head, with a slot on all but the last."""
    layers = range(1 + blocks)
    return HostTopology(
        kinds=(LayerKind.STEM, *[LayerKind.BLOCK] * blocks, LayerKind.HEAD),
        widths=(*[width] * (1 + blocks), CLASSES),
        connects=tuple((layer, layer + 1) for layer in layers),
        sites=(Site(width),) * (1 + blocks),
        monitors=tuple((layer, layer) for layer in layers),
        classes=CLASSES,
    )


def stem(width: int) -> TrunkPart:
    """Return the part of the stem."""
    return TrunkPart((INPUTS, width), float(1.0 / np.sqrt(INPUTS)), layer=0, depth=0)


def head(width: int, blocks: int) -> TrunkPart:
    """Return the part of the head behind ``blocks`` blocks."""
    return TrunkPart((CLASSES, width), float(0.5 / np.sqrt(width)), layer=1 + blocks, depth=1 + blocks)


class PairsTrunk(BlockTrunk):
    """A trunk that reads the features of two digits."""

    @staticmethod
    def inputs(pairs: Pairs) -> NDArray[np.float32]:
        """Return [n, 34]: digit a, digit b, the selector as -1 or 1, and a one for the stem's bias."""
        inputs = np.zeros((len(pairs.a), INPUTS), dtype=np.float32)
        inputs[:, :DIGIT], inputs[:, DIGIT : 2 * DIGIT] = pairs.a, pairs.b
        inputs[:, 2 * DIGIT], inputs[:, 2 * DIGIT + 1] = np.where(pairs.selector, 1.0, -1.0), 1.0
        return inputs


def _block_parts(width: int, blocks: int) -> list[TrunkPart]:
    return [
        part
        for block in range(blocks)
        for part in (
            TrunkPart((width, HIDDEN), float(np.sqrt(2.0 / width)), layer=1 + block, depth=1 + block, hidden_axis=1),
            TrunkPart((HIDDEN, width), float(0.5 / np.sqrt(HIDDEN)), layer=1 + block, depth=1 + block, hidden_axis=0),
        )
    ]


class MlpTrunk(PairsTrunk):
    """The MLP trunk. Unused hidden units have zero columns in W and zero rows in V: no gradient."""

    topology = chain(WIDTH, BLOCKS)
    parts = (stem(WIDTH), *_block_parts(WIDTH, BLOCKS), head(WIDTH, BLOCKS))
    per_block = 2

    def __init__(self, recipes: Sequence[HostRecipe]) -> None:
        super().__init__(recipes)
        turns = np.arange(len(self.topology.sites) - 1) % BLOCKS
        self.hidden: NDArray[np.int64] = np.array([recipe.hidden for recipe in recipes], dtype=np.int64)[:, turns]

    def block(self, index: int, parts: Sequence[Tensor], x: Tensor, out: Tensor | None = None) -> Tensor:
        down, up = parts[1 + 2 * index], parts[2 + 2 * index]
        return product(torch.bmm(x, down).relu_(), up, x, out)

    def enter(self, index: int, parts: Sequence[Tensor], x: Tensor, out: Tensor) -> _Block:
        down, up = parts[1 + 2 * index], parts[2 + 2 * index]
        unit = torch.bmm(x, down).relu_()
        torch.baddbmm(x, unit, up, out=out)
        return _Block(x, unit, down, up)


class _Block(NamedTuple):
    x: Tensor
    unit: Tensor
    """[R, B, M]: relu(W x)."""
    down: Tensor
    up: Tensor

    def pull(self, g: Tensor, hosts: int, out: Sequence[Tensor]) -> Tensor:
        torch.bmm(self.unit[:hosts].transpose(1, 2), g[:hosts], out=out[1])
        inner = torch.bmm(g, self.up.transpose(1, 2))
        inner = torch.ops.aten.threshold_backward(inner, self.unit, 0.0)
        torch.bmm(self.x[:hosts].transpose(1, 2), inner[:hosts], out=out[0])
        return torch.baddbmm(g, inner, self.down.transpose(1, 2))


def mlp(width: int, blocks: int) -> type[MlpTrunk]:
    """Return the trunk with other sizes, for a family of its own; hidden units of a recipe go to the blocks in turn."""
    parts = (stem(width), *_block_parts(width, blocks), head(width, blocks))
    return type(f"Mlp{width}x{blocks}", (MlpTrunk,), {"topology": chain(width, blocks), "parts": parts})


TRUNK = MlpTrunk
