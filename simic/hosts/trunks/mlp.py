"""``mlp``: stem, slot 0, block 1, slot 1, block 2, slot 2, head; block i is x + V relu(W x).

Shapes: R rows, B samples, D width, M hidden.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from simic.contracts.state import LayerKind
from simic.hosts.batched.conv import product
from simic.hosts.batched.residual import ResidualTrunk
from simic.hosts.batched.sizes import BLOCKS, CLASSES, CONNECTS, DIGIT, HIDDEN, INPUTS, MONITORS, SLOTS, WIDTH
from simic.hosts.batched.trunk import TrunkPart
from simic.hosts.interfaces import HostRecipe, HostTopology, Pairs, Site

__all__ = ["TRUNK", "MlpTrunk"]

_BLOCK_PARTS = tuple(
    part
    for block in range(BLOCKS)
    for part in (
        TrunkPart((WIDTH, HIDDEN), float(np.sqrt(2.0 / WIDTH)), layer=1 + block, depth=1 + block, hidden_axis=1),
        TrunkPart((HIDDEN, WIDTH), float(0.5 / np.sqrt(HIDDEN)), layer=1 + block, depth=1 + block, hidden_axis=0),
    )
)


class MlpTrunk(ResidualTrunk):
    """The MLP trunk. Unused hidden units have zero columns in W and zero rows in V: no gradient."""

    topology = HostTopology(
        kinds=(LayerKind.STEM, *[LayerKind.BLOCK] * BLOCKS, LayerKind.HEAD),
        widths=(*[WIDTH] * (1 + BLOCKS), CLASSES),
        connects=CONNECTS,
        sites=(Site(WIDTH),) * SLOTS,
        monitors=MONITORS,
        classes=CLASSES,
    )
    parts = (
        TrunkPart((INPUTS, WIDTH), float(1.0 / np.sqrt(INPUTS)), layer=0, depth=0),
        *_BLOCK_PARTS,
        TrunkPart((CLASSES, WIDTH), float(0.5 / np.sqrt(WIDTH)), layer=1 + BLOCKS, depth=SLOTS),
    )

    def __init__(self, recipes: Sequence[HostRecipe]) -> None:
        super().__init__(recipes)
        self.hidden: NDArray[np.int64] = np.array([recipe.hidden for recipe in recipes], dtype=np.int64)

    @staticmethod
    def inputs(pairs: Pairs) -> NDArray[np.float32]:
        """Return [n, 34]: digit a, digit b, the selector as -1 or 1, and a one for the stem's bias."""
        inputs = np.zeros((len(pairs.a), INPUTS), dtype=np.float32)
        inputs[:, :DIGIT], inputs[:, DIGIT : 2 * DIGIT] = pairs.a, pairs.b
        inputs[:, 2 * DIGIT], inputs[:, 2 * DIGIT + 1] = np.where(pairs.selector, 1.0, -1.0), 1.0
        return inputs

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


TRUNK = MlpTrunk
