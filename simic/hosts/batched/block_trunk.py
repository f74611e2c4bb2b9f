"""Trunks of blocks: stem, slot 0, block 1, slot 1, ..., head; a block keeps the shape of its input.

The backward pass is explicit, so that each product covers all hosts at once and extra rows skip the gradients of the
hosts' weights. Only seeds use automatic differentiation.
Shapes: N hosts, R rows, B samples, D features of a position, C classes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from simic.hosts.batched.conv import product
from simic.hosts.batched.seeds import PackedSeeds
from simic.hosts.batched.trunk import StepBatch, TrunkPart, backpropagate_seeds, scaled
from simic.hosts.batched.weights import HostWeights
from simic.hosts.interfaces import HostRecipe, HostTopology, Pairs

__all__ = ["Block", "BlockTrunk"]


class Block(Protocol):
    """The saved tensors of a block, with its backward pass."""

    def pull(self, g: Tensor, hosts: int, out: Sequence[Tensor]) -> Tensor:
        """Return the gradient of the input from that of the output ``g`` [R, B, *space, D], which is overwritten.

        Write the gradients of the block's parts, from the first ``hosts`` rows, to ``out``.
        """
        ...


class BlockTrunk:
    """A ``Trunk`` of blocks; a subclass adds parts, inputs and its block."""

    topology: HostTopology
    parts: tuple[TrunkPart, ...]
    """Stem, then the ``per_block`` parts of every block, then head."""
    per_block: int
    """Parts of a block."""
    hidden: NDArray[Any]

    def __init__(self, recipes: Sequence[HostRecipe]) -> None:
        is_linear = np.array([recipe.is_linear for recipe in recipes])
        self._floor = torch.from_numpy(np.where(is_linear, -np.inf, 0.0).astype(np.float32))[:, None, None]
        self._passing = torch.from_numpy(is_linear.astype(np.float32))[:, None, None]

    @staticmethod
    def inputs(pairs: Pairs) -> NDArray[np.float32]:
        raise NotImplementedError

    def block(self, index: int, parts: Sequence[Tensor], x: Tensor, out: Tensor | None = None) -> Tensor:
        raise NotImplementedError

    def parts_of(self, index: int, parts: Sequence[Tensor]) -> Sequence[Tensor]:
        """Return those of a block."""
        first = 1 + self.per_block * index
        return parts[first : first + self.per_block]

    def enter(self, index: int, parts: Sequence[Tensor], x: Tensor, out: Tensor) -> Block:
        """Compute ``block`` in training and return what its backward pass needs."""
        raise NotImplementedError

    def read(self, x: Tensor) -> Tensor:
        """Return what the head reads [R, B, F] of the rows [R, B, *space, D] after the last slot."""
        return x.flatten(2)

    def spread(self, g: Tensor, shape: torch.Size) -> Tensor:
        """Return the gradient of those rows, of ``shape``, from that of what the head reads."""
        return g.view(shape)

    def stem(self, parts: Sequence[Tensor], inputs: Tensor) -> Tensor:
        x = torch.maximum(product(inputs.flatten(1, -2), parts[0]), self._floor)
        return x.view(*inputs.shape[:-1], -1)

    def logits(self, parts: Sequence[Tensor], x: Tensor) -> Tensor:
        return product(parts[-1], self.read(x).transpose(1, 2))

    def backpropagate(
        self, parts: Sequence[Tensor], packed: PackedSeeds, batch: StepBatch, out: HostWeights
    ) -> tuple[Tensor, list[Tensor]]:
        layout, hosts, slots = packed.layout, packed.layout.counts[0], len(packed.by_slot)
        x = self.stem(parts, batch.inputs)
        # Positive where the ReLU of the stem passed its input.
        kept = torch.maximum(x.flatten(1, -2), self._passing)
        blocks: list[Block] = []
        grown = []
        for slot, slot_seeds in enumerate(packed.by_slot):
            if slot:
                rows = layout.allocate(x, slot)
                blocks.append(self.enter(slot - 1, parts, x, rows[: len(x)]))
                scaled(rows[: len(x)], batch.gains[slot - 1], layout, slot)
                x = rows
            x = layout.branch(x, slot)
            grown.append(None if slot_seeds is None else slot_seeds.apply(x, batch.noise[slot], in_training=True))
        seen = self.read(x)
        logits = product(parts[-1], seen.transpose(1, 2))

        g = logits.softmax(dim=1)
        g.sub_(layout.per_row(batch.targets, slots)).mul_(1.0 / batch.targets.shape[2])
        out.parts[-1].copy_(product(g[:hosts], seen[:hosts]))
        g = self.spread(product(g.transpose(1, 2), parts[-1]), x.shape)
        own: list[Tensor] = []
        for slot in reversed(range(slots)):
            own = backpropagate_seeds(packed.by_slot[slot], grown[slot], g) + own
            g = g[: layout.counts[slot]]
            if slot:
                g = scaled(g, batch.gains[slot - 1], layout, slot)
                g = blocks[slot - 1].pull(g, hosts, self.parts_of(slot - 1, out.parts))
        above = torch.ops.aten.threshold_backward(g.flatten(1, -2), kept, 0.0)
        out.parts[0].copy_(product(batch.inputs.flatten(1, -2).transpose(1, 2), above))
        return logits, own
