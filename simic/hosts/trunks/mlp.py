"""``mlp``: stem, slot 0, block 1, slot 1, block 2, slot 2, head; block i is x + V relu(W x).

The backward pass is written out, so that every product is one ``bmm`` over the stacked hosts.
Shapes: N hosts, R rows, B samples, D width, M hidden.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from simic.contracts.state import LayerKind
from simic.hosts.protocols import Anatomy, HostRecipe, Pairs, Site
from simic.hosts.stacked.anatomy import BATCH, BLOCKS, CLASSES, CONNECTS, DIGIT, HIDDEN, INPUTS, MONITORS, SLOTS, WIDTH
from simic.hosts.stacked.growth import Growth
from simic.hosts.stacked.trunk import StepBatch, TrunkPart, into_seeds, scaled
from simic.hosts.stacked.weights import HostWeights

__all__ = ["TRUNK", "MlpTrunk"]

_BLOCK_PARTS = tuple(
    part
    for block in range(BLOCKS)
    for part in (
        TrunkPart((WIDTH, HIDDEN), float(np.sqrt(2.0 / WIDTH)), layer=1 + block, depth=1 + block, hidden_axis=1),
        TrunkPart((HIDDEN, WIDTH), float(0.5 / np.sqrt(HIDDEN)), layer=1 + block, depth=1 + block, hidden_axis=0),
    )
)


class MlpTrunk:
    """See ``Trunk``. Masked hidden units have zero columns in W and zero rows in V, so their gradients are zero too."""

    anatomy = Anatomy(
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
        is_linear = np.array([recipe.is_linear for recipe in recipes])
        self.hidden: NDArray[np.int64] = np.array([recipe.hidden for recipe in recipes], dtype=np.int64)
        self._floor = torch.from_numpy(np.where(is_linear, -np.inf, 0.0).astype(np.float32))[:, None, None]
        self._passing = torch.from_numpy(is_linear.astype(np.float32))[:, None, None]

    @staticmethod
    def inputs(pairs: Pairs) -> NDArray[np.float32]:
        """See ``Trunk``: digit a, digit b, selector as -1 or 1, and a one that carries the stem's bias; [n, 34]."""
        inputs = np.zeros((len(pairs.a), INPUTS), dtype=np.float32)
        inputs[:, :DIGIT], inputs[:, DIGIT : 2 * DIGIT] = pairs.a, pairs.b
        inputs[:, 2 * DIGIT], inputs[:, 2 * DIGIT + 1] = np.where(pairs.selector, 1.0, -1.0), 1.0
        return inputs

    def stem(self, parts: Sequence[Tensor], inputs: Tensor) -> Tensor:
        """See ``Trunk``."""
        return torch.maximum(torch.bmm(inputs, parts[0]), self._floor)

    def block(self, index: int, parts: Sequence[Tensor], x: Tensor) -> Tensor:
        """See ``Trunk``."""
        return torch.baddbmm(x, torch.bmm(x, parts[1 + 2 * index]).relu_(), parts[2 + 2 * index])

    def logits(self, parts: Sequence[Tensor], x: Tensor) -> Tensor:
        """See ``Trunk``."""
        return torch.bmm(parts[-1], x.transpose(1, 2))

    def backpropagate(
        self, parts: Sequence[Tensor], growth: Growth, batch: StepBatch, out: HostWeights
    ) -> tuple[Tensor, list[Tensor]]:
        """See ``Trunk``."""
        paths, hosts = growth.paths, growth.paths.counts[0]
        x = torch.maximum(torch.bmm(batch.inputs, parts[0]), self._floor)
        stem = torch.maximum(x, self._passing)
        states, hidden, grown = [], [], []
        for slot, bed in enumerate(growth.beds):
            if slot:
                unit = torch.bmm(x, parts[2 * slot - 1]).relu_()
                x = scaled(torch.baddbmm(x, unit, parts[2 * slot]), batch.gains[slot - 1], paths, slot)
                hidden.append(unit)
            if len(paths.starts[slot]):
                x = torch.cat([x, x.index_select(0, paths.starts[slot])])
            grown.append(None if bed is None else bed.apply(x, batch.noise[slot], in_training=True))
            states.append(x)
        logits = torch.bmm(parts[-1], x.transpose(1, 2))

        g = logits.softmax(dim=1)
        g.sub_(paths.per_row(batch.targets, SLOTS)).mul_(1.0 / BATCH)
        torch.bmm(g[:hosts], states[-1][:hosts], out=out.parts[-1])
        g = torch.bmm(g.transpose(1, 2), parts[-1])
        own: list[Tensor] = []
        for slot in reversed(range(SLOTS)):
            own = into_seeds(growth.beds[slot], grown[slot], g) + own
            g = g[: paths.counts[slot]]
            if not slot:
                break
            gain = batch.gains[slot - 1]
            if gain is not None:
                g = g * paths.per_row(gain, slot)
            unit, below, down, up = hidden[slot - 1], states[slot - 1], 2 * slot - 1, 2 * slot
            torch.bmm(unit[:hosts].transpose(1, 2), g[:hosts], out=out.parts[up])
            inner = torch.bmm(g, parts[up].transpose(1, 2))
            inner = torch.ops.aten.threshold_backward(inner, unit, 0.0)
            torch.bmm(below[:hosts].transpose(1, 2), inner[:hosts], out=out.parts[down])
            g = torch.baddbmm(g, inner, parts[down].transpose(1, 2))
        # Positive where the stem's output was not cut off.
        g = torch.ops.aten.threshold_backward(g, stem, 0.0)
        torch.bmm(batch.inputs.transpose(1, 2), g, out=out.parts[0])
        return logits, own


TRUNK = MlpTrunk
