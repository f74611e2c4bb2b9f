"""The fixed part of stacked hosts, between whose layers seeds grow: a stem, blocks, a head, and a slot behind all but
the last.

A new kind of host is a file in ``trunks``; what only it knows is how its layers compute; one made of
residual blocks finds its way back in ``residual``.
Shapes: N hosts, S slots, R rows, B samples, D features, C classes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from simic.hosts import counter_rng
from simic.hosts.counter_rng import Purpose
from simic.hosts.protocols import Anatomy, HostRecipe, Pairs
from simic.hosts.stacked.growth import Bed, Growth, Paths
from simic.hosts.stacked.weights import HostWeights, Shape

__all__ = [
    "StepBatch",
    "Trunk",
    "TrunkPart",
    "birth_of_hosts",
    "into_seeds",
    "move_constants",
    "per_row",
    "scaled",
]


class TrunkPart(NamedTuple):
    """One array of parameters per host."""

    shape: Shape
    scale: float
    """Standard deviation at birth."""
    layer: int
    """The layer whose norms it counts towards."""
    depth: int
    """Slots passed before it is used."""
    hidden_axis: int | None = None
    """Axis of a block's hidden units, of which a host may have fewer; the others are zero for ever."""


class StepBatch(NamedTuple):
    """What one step shows."""

    inputs: Tensor
    """[N, B, ...]"""
    targets: Tensor
    """[N, C, B], one-hot; classes in front, because reductions over a short last dimension are slow."""
    gains: tuple[Tensor | None, ...]
    """Per block: factor of its output, [N, B, 1], or None where no host has one."""
    noise: tuple[list[Tensor | None], ...]
    """Per slot and group: [n, B, D] uniform, for blueprints that want it."""


class Trunk(Protocol):
    """Hosts of one kind; ``parts`` hold per row what ``TrunkPart`` describes.

    Tensors of its own are attributes, so that they can be moved to a GPU. A layer reads no number back and makes no
    tensor elsewhere, so that it can be captured there; a part is used by no layer but the one behind ``depth`` slots.
    """

    anatomy: Anatomy
    parts: tuple[TrunkPart, ...]
    hidden: NDArray[np.int64]
    """[N, blocks]: live hidden units."""

    def __init__(self, recipes: Sequence[HostRecipe]) -> None: ...

    @staticmethod
    def inputs(pairs: Pairs) -> NDArray[np.float32]:
        """How the hosts are shown the samples, [n, ...]."""
        ...

    def stem(self, parts: Sequence[Tensor], inputs: Tensor) -> Tensor:
        """The state in front of slot 0, [N, B, *space, D]."""
        ...

    def block(self, index: int, parts: Sequence[Tensor], x: Tensor, out: Tensor | None = None) -> Tensor:
        """The state in front of slot ``index`` + 1, from the rows [R, B, *space, D] behind slot ``index``.

        Written to ``out`` if that is given, without gradients then.
        """
        ...

    def logits(self, parts: Sequence[Tensor], x: Tensor) -> Tensor:
        """[R, C, B]"""
        ...

    def backpropagate(
        self, parts: Sequence[Tensor], growth: Growth, batch: StepBatch, out: HostWeights
    ) -> tuple[Tensor, list[Tensor]]:
        """Logits [R, C, B], and gradients of the groups' parameters; those of the hosts' parts go into ``out``.

        The loss is the sum over rows of the mean cross-entropy; extra rows give no gradient to parts, nor to the host
        they branched from.
        """
        ...


def move_constants(trunk: Trunk, device: torch.device) -> None:
    """Put the tensors that a trunk keeps as attributes onto a device."""
    for name, value in vars(trunk).items():
        if isinstance(value, Tensor):
            setattr(trunk, name, value.to(device))


def birth_of_hosts(trunk: Trunk, keys: NDArray[np.int64]) -> HostWeights:
    """Initial weights from host keys [N]."""
    weights = HostWeights.zeros(len(keys), [part.shape for part in trunk.parts])
    for index, (values, part) in enumerate(zip(weights.parts, trunk.parts, strict=True)):
        draws = counter_rng.normals(counter_rng.streams(keys, Purpose.WEIGHTS, index), values[0].numel())
        values.copy_(torch.from_numpy(draws * np.float32(part.scale)).view_as(values))
        if part.hidden_axis is not None:
            units = part.shape[part.hidden_axis]
            is_dead = torch.from_numpy(np.arange(units) >= trunk.hidden[:, part.layer - 1, None])
            shape = [len(keys), *[1] * len(part.shape)]
            shape[1 + part.hidden_axis] = units
            values.masked_fill_(is_dead.view(shape), 0.0)
    return weights


def per_row(trunk: Trunk, weights: HostWeights, paths: Paths) -> tuple[Tensor, ...]:
    """Each row's parts."""
    return tuple(paths.per_row(values, part.depth) for values, part in zip(weights.parts, trunk.parts, strict=True))


def scaled(x: Tensor, gain: Tensor | None, paths: Paths, slot: int) -> Tensor:
    """A block's output times its hosts' gain, in place."""
    if gain is None:
        return x
    factor = paths.per_row(gain, slot)
    return x.mul_(factor.view(*factor.shape[:2], *[1] * (x.dim() - 2)))


def into_seeds(bed: Bed | None, graph: tuple[Tensor, Tensor] | None, g: Tensor) -> list[Tensor]:
    """Add what flows through a slot's seeds to ``g`` [R, B, D]; returns the seeds' own gradients, group by group."""
    if bed is None or graph is None:
        return []
    h, change = graph
    above = g.index_select(0, bed.target)
    leaves = [group.parameters for group in bed.groups if group.parameters.requires_grad]
    below, *own = torch.autograd.grad(change, (h, *leaves), grad_outputs=above)
    g.index_copy_(0, bed.target, above + below)
    return own
