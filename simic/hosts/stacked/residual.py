"""Trunks of residual blocks: stem, slot 0, block 1, slot 1, ..., head; block i is x + V relu(W x), W of any kind.

The backward pass is written out, so that each product is one over all stacked hosts, and extra rows cost the hosts'
weights nothing. Seeds alone are left to automatic differentiation.
Shapes: N hosts, R rows, B samples, D features of a position, C classes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from simic.hosts.protocols import Anatomy, HostRecipe, Pairs
from simic.hosts.stacked.growth import Growth
from simic.hosts.stacked.maps import product
from simic.hosts.stacked.trunk import StepBatch, TrunkPart, into_seeds, scaled
from simic.hosts.stacked.weights import HostWeights

__all__ = ["Block", "ResidualTrunk"]


class Block(Protocol):
    """What a block's backward pass needs."""

    def pull(self, g: Tensor, hosts: int, out: Sequence[Tensor]) -> Tensor:
        """The gradient of what entered, from that of what left, [R, B, *space, D]; ``g`` is used up.

        Those of W and V, from the first ``hosts`` rows, go to ``out``.
        """
        ...


class ResidualTrunk:
    """See ``Trunk``. A kind of host adds its parts, how it is shown the samples, and its block."""

    anatomy: Anatomy
    parts: tuple[TrunkPart, ...]
    """Stem, then W and V of every block, then head."""
    hidden: NDArray[np.int64]

    def __init__(self, recipes: Sequence[HostRecipe]) -> None:
        is_linear = np.array([recipe.is_linear for recipe in recipes])
        self._floor = torch.from_numpy(np.where(is_linear, -np.inf, 0.0).astype(np.float32))[:, None, None]
        self._passing = torch.from_numpy(is_linear.astype(np.float32))[:, None, None]

    @staticmethod
    def inputs(pairs: Pairs) -> NDArray[np.float32]:
        """See ``Trunk``."""
        raise NotImplementedError

    def block(self, index: int, parts: Sequence[Tensor], x: Tensor, out: Tensor | None = None) -> Tensor:
        """See ``Trunk``."""
        raise NotImplementedError

    def enter(self, index: int, parts: Sequence[Tensor], x: Tensor, out: Tensor) -> Block:
        """The same as ``block`` in a step; there is a way back."""
        raise NotImplementedError

    def stem(self, parts: Sequence[Tensor], inputs: Tensor) -> Tensor:
        """See ``Trunk``."""
        x = torch.maximum(product(inputs.flatten(1, -2), parts[0]), self._floor)
        return x.view(*inputs.shape[:-1], -1)

    def logits(self, parts: Sequence[Tensor], x: Tensor) -> Tensor:
        """See ``Trunk``."""
        return product(parts[-1], x.flatten(2).transpose(1, 2))

    def backpropagate(
        self, parts: Sequence[Tensor], growth: Growth, batch: StepBatch, out: HostWeights
    ) -> tuple[Tensor, list[Tensor]]:
        """See ``Trunk``."""
        paths, hosts, slots = growth.paths, growth.paths.counts[0], len(growth.beds)
        x = self.stem(parts, batch.inputs)
        # Positive where the stem's output was not cut off.
        kept = torch.maximum(x.flatten(1, -2), self._passing)
        blocks: list[Block] = []
        grown = []
        for slot, bed in enumerate(growth.beds):
            if slot:
                rows = paths.room(x, slot)
                blocks.append(self.enter(slot - 1, parts, x, rows[: len(x)]))
                scaled(rows[: len(x)], batch.gains[slot - 1], paths, slot)
                x = rows
            x = paths.branch(x, slot)
            grown.append(None if bed is None else bed.apply(x, batch.noise[slot], in_training=True))
        flat = x.flatten(2)
        logits = product(parts[-1], flat.transpose(1, 2))

        g = logits.softmax(dim=1)
        g.sub_(paths.per_row(batch.targets, slots)).mul_(1.0 / batch.targets.shape[2])
        out.parts[-1].copy_(product(g[:hosts], flat[:hosts]))
        g = product(g.transpose(1, 2), parts[-1]).view(x.shape)
        own: list[Tensor] = []
        for slot in reversed(range(slots)):
            own = into_seeds(growth.beds[slot], grown[slot], g) + own
            g = g[: paths.counts[slot]]
            if slot:
                g = scaled(g, batch.gains[slot - 1], paths, slot)
                g = blocks[slot - 1].pull(g, hosts, out.parts[2 * slot - 1 : 2 * slot + 1])
        above = torch.ops.aten.threshold_backward(g.flatten(1, -2), kept, 0.0)
        out.parts[0].copy_(product(batch.inputs.flatten(1, -2).transpose(1, 2), above))
        return logits, own
