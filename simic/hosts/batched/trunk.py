"""Trunks: the fixed layers of batched hosts, a stem, blocks and a head, with a slot after all but the last.

A new trunk is a file in ``trunks``; one of blocks inherits its backward pass from ``block_trunk``.
Shapes: N hosts, S slots, R rows, B samples, D features, C classes.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from simic.hosts import rng
from simic.hosts.batched.seeds import PackedSeeds, RowLayout, SlotSeeds
from simic.hosts.batched.sizes import BLOCKS
from simic.hosts.batched.weights import HostWeights, Shape
from simic.hosts.interfaces import HostRecipe, HostTopology, Pairs
from simic.hosts.rng import Purpose

__all__ = [
    "StepBatch",
    "Trunk",
    "TrunkPart",
    "backpropagate_seeds",
    "initial_weights",
    "live_parameters",
    "move_constants",
    "per_row",
    "scaled",
]


class TrunkPart(NamedTuple):
    """One array of parameters per host."""

    shape: Shape
    scale: float
    """Standard deviation at initialisation."""
    layer: int
    """The layer whose norms include this part."""
    depth: int
    """Number of slots before the part is used."""
    hidden_axis: int | None = None
    """Axis of a block's hidden units; unused units of a host stay zero."""
    start: float = 0.0
    """Added to the draws at initialisation."""
    is_statistic: bool = False
    """Whether this is a running statistic and no parameter. Its "gradient" is its distance to the value of the batch; a
    step moves it by ``STATISTIC_RATE`` of that."""


class StepBatch(NamedTuple):
    """The batch of one training step."""

    inputs: Tensor
    """[N, B, ...]"""
    targets: Tensor
    """[N, C, B], one-hot; classes in front, because reductions over a short last dimension are slow."""
    gains: tuple[Tensor | None, ...]
    """Per block: factor of its output, [N, B, 1], or None where no host has one."""
    noise: tuple[list[Tensor | None], ...]
    """Per slot and group: [n, B, D] uniform, for noisy blueprints."""


class Trunk(Protocol):
    """The layers of N hosts of one kind; ``parts`` are passed per row, as ``TrunkPart`` describes them.

    Tensors are attributes, so that ``move_constants`` can move them to a GPU. A layer reads no value back and creates
    no tensor on another device, so that it can be captured; a part is used only by the layer after ``depth`` slots.
    """

    topology: HostTopology
    parts: tuple[TrunkPart, ...]
    hidden: NDArray[Any]
    """[N, blocks]: used hidden units; NaN where blocks have none."""

    def __init__(self, recipes: Sequence[HostRecipe]) -> None: ...

    @staticmethod
    def inputs(pairs: Pairs) -> NDArray[np.float32]:
        """Return the model inputs of the samples, [n, ...]."""
        ...

    def stem(self, parts: Sequence[Tensor], inputs: Tensor) -> Tensor:
        """Return the state before slot 0, [N, B, *space, D]."""
        ...

    def block(self, index: int, parts: Sequence[Tensor], x: Tensor, out: Tensor | None = None) -> Tensor:
        """Return the state before slot ``index`` + 1 from the rows [R, B, *space, D] after slot ``index``.

        With ``out`` the result is written there, without gradients.
        """
        ...

    def logits(self, parts: Sequence[Tensor], x: Tensor) -> Tensor:
        """Return logits [R, C, B] from the rows after the last slot."""
        ...

    def backpropagate(
        self, parts: Sequence[Tensor], packed: PackedSeeds, batch: StepBatch, out: HostWeights
    ) -> tuple[Tensor, list[Tensor]]:
        """Return logits [R, C, B] and gradients of the groups' parameters; write those of the parts to ``out``.

        The loss is the sum over rows of the mean cross-entropy. Extra rows give no gradient to parts, nor to the host
        they branched from.
        """
        ...


def move_constants(trunk: Trunk, device: torch.device) -> None:
    """Move the tensor attributes of a trunk to a device."""
    for name, value in vars(trunk).items():
        if isinstance(value, Tensor):
            setattr(trunk, name, value.to(device))


def initial_weights(trunk: Trunk, keys: NDArray[np.int64], scales: NDArray[np.float32] | None = None) -> HostWeights:
    """Return initial weights from host keys [N], multiplied by their ``layer_scales`` [N, 4], if given."""
    weights = HostWeights.zeros(len(keys), [part.shape for part in trunk.parts])
    for index, (values, part) in enumerate(zip(weights.parts, trunk.parts, strict=True)):
        draws = rng.normals(rng.streams(keys, Purpose.WEIGHTS, index), values[0].numel())
        draws = draws * np.float32(part.scale)
        if scales is not None:
            draws = draws * scales[:, _scale_of(trunk, part.layer), None]
        values.copy_(torch.from_numpy(draws).view_as(values)).add_(part.start)
        if part.hidden_axis is not None:
            units = part.shape[part.hidden_axis]
            is_dead = torch.from_numpy(np.arange(units) >= trunk.hidden[:, part.layer - 1, None])
            shape = [len(keys), *[1] * len(part.shape)]
            shape[1 + part.hidden_axis] = units
            values.masked_fill_(is_dead.view(shape), 0.0)
    return weights


def _scale_of(trunk: Trunk, layer: int) -> int:
    """Return the column of ``HostRecipe.layer_scales`` for a layer: the blocks take theirs in turn."""
    if layer == len(trunk.topology.kinds) - 1:
        return -1
    return layer if layer == 0 else 1 + (layer - 1) % BLOCKS


def live_parameters(trunk: Trunk, hosts: int) -> NDArray[np.int64]:
    """Return the parameters of ``hosts`` hosts of a trunk, [N], without those of unused hidden units."""
    total = np.zeros(hosts, dtype=np.int64)
    for part in trunk.parts:
        if part.is_statistic:
            continue
        if part.hidden_axis is None:
            total += prod(part.shape)
        else:
            total += prod(part.shape) // part.shape[part.hidden_axis] * trunk.hidden[:, part.layer - 1].astype(np.int64)
    return total


def per_row(trunk: Trunk, weights: HostWeights, layout: RowLayout) -> tuple[Tensor, ...]:
    """Return the parts of every row."""
    return tuple(layout.per_row(values, part.depth) for values, part in zip(weights.parts, trunk.parts, strict=True))


def scaled(x: Tensor, gain: Tensor | None, layout: RowLayout, slot: int) -> Tensor:
    """Multiply a block's output by its hosts' gain, in place."""
    if gain is None:
        return x
    factor = layout.per_row(gain, slot)
    return x.mul_(factor.view(*factor.shape[:2], *[1] * (x.dim() - 2)))


def backpropagate_seeds(slot_seeds: SlotSeeds | None, graph: tuple[Tensor, Tensor] | None, g: Tensor) -> list[Tensor]:
    """Add the gradient through a slot's seeds to ``g`` [R, B, D]; returns the seeds' own gradients by group."""
    if slot_seeds is None or graph is None:
        return []
    h, change = graph
    above = g.index_select(0, slot_seeds.target)
    leaves = [group.parameters for group in slot_seeds.groups if group.parameters.requires_grad]
    below, *own = torch.autograd.grad(change, (h, *leaves), grad_outputs=above)
    g.index_copy_(0, slot_seeds.target, above + below)
    return own
