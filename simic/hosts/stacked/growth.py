"""Seeds packed for one epoch, and the extra paths that run beside the hosts' own.

The lifecycle changes only between epochs, so the seeds that take part are gathered once into one contiguous
group per slot and blueprint, and scattered back when the epoch is over.

A *row* is one path through the network. Rows 0 .. N-1 are the hosts themselves. Extra rows branch off in front
of a slot: in training, a seed that learns in isolation runs its own blended network there; in evaluation, the
network without that slot's seed does. Rows keep their order and only grow, so every layer works on a prefix.
Where an extra row meets another slot with a seed that its host feels, it passes through that seed as well.
Shapes: N hosts, S slots, R rows, n seeds of a group, P parameters, B samples, D features of a position.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from simic.hosts.operators import change_of
from simic.hosts.protocols import Blueprint, Roles, Site
from simic.hosts.stacked.weights import SeedStore

__all__ = ["Bed", "Group", "Growth", "Paths", "gather", "scatter"]

Ints = NDArray[np.int64]
_AT_A_TIME = 2**18
"""Floats of states that a blueprint is given at a time where nothing is learned, so that the cache holds its work."""


class Paths(NamedTuple):
    """The rows."""

    hosts: Tensor
    """int64 [R]: whose weights a row uses."""
    counts: tuple[int, ...]
    """[S + 1]: rows in front of the first slot (N), then behind each slot."""
    starts: tuple[Tensor, ...]
    """Per slot, int64: the host rows its extra rows copy."""

    def per_row(self, values: Tensor, slot: int) -> Tensor:
        """Host values [N, ...] for the rows in front of a slot; ``slot`` S means all."""
        count = self.counts[slot]
        return values if count == self.counts[0] else values.index_select(0, self.hosts[:count])

    def room(self, x: Tensor, slot: int) -> Tensor:
        """Memory like ``x`` for all rows that enter a slot."""
        return x.new_empty(self.counts[slot + 1], *x.shape[1:])

    def branch(self, x: Tensor, slot: int) -> Tensor:
        """The rows that enter a slot, those that start there being copies; fills in ``x`` if it has room for them."""
        starts, known = self.starts[slot], self.counts[slot]
        if not len(starts):
            return x
        if len(x) == known:
            return torch.cat([x, x.index_select(0, starts)])
        x[known:] = x.index_select(0, starts)
        return x


@dataclass
class Group:
    """Seeds of one blueprint in one slot."""

    blueprint: Blueprint
    hosts: Ints
    """[n]"""
    is_felt: NDArray[np.bool_]
    """[n]: the host feels the seed; the others learn in isolation."""
    parameters: Tensor
    """[n, P], a leaf in training."""
    passenger: Tensor | None
    """int64: the seed of each extra row that passes through, behind the seeds' own rows."""

    def change(self, h: Tensor, noise: Tensor | None) -> Tensor:
        """Change of each row of h [n + passengers, B, *space, D] at alpha 1; passengers teach the seed nothing."""
        parameters = self.parameters
        if self.passenger is not None:
            parameters = torch.cat([parameters, parameters.detach().index_select(0, self.passenger)])
            noise = None if noise is None else torch.cat([noise, noise.index_select(0, self.passenger)])
        if torch.is_grad_enabled() or noise is not None:
            return change_of(self.blueprint.operator, h, self.blueprint.delta(parameters, h, noise))
        some = max(2, _AT_A_TIME // max(1, h[0].numel()))
        pieces = zip(torch.split(parameters, some), torch.split(h, some), strict=True)
        return torch.cat([change_of(self.blueprint.operator, x, self.blueprint.delta(p, x, None)) for p, x in pieces])


@dataclass
class Bed:
    """All groups of one slot, their rows one behind the other."""

    groups: tuple[Group, ...]
    sizes: list[int]
    """Rows per group."""
    source: Tensor
    """int64 rows read."""
    target: Tensor
    """int64 rows written."""
    scale: Tensor
    """[rows]: alpha."""

    def change(self, h: Tensor, noise: Sequence[Tensor | None]) -> Tensor:
        """What the rows ``h`` [rows, B, *space, D] gain: alpha times the change at alpha 1."""
        parts = torch.split(h, self.sizes)
        changes = [group.change(part, drawn) for group, part, drawn in zip(self.groups, parts, noise, strict=True)]
        return torch.cat(changes) * self.scale.view(-1, *[1] * (h.dim() - 1))

    def apply(self, x: Tensor, noise: Sequence[Tensor | None], *, in_training: bool) -> tuple[Tensor, Tensor]:
        """Write h + change into the target rows of ``x`` [R, B, *space, D]; returns (h, change)."""
        h = x.index_select(0, self.source)
        with torch.set_grad_enabled(in_training):
            h.requires_grad_(in_training)
            change = self.change(h, noise)
        x.index_copy_(0, self.target, h.detach() + change.detach())
        return h, change


class Growth(NamedTuple):
    """Everything that is grown, for one pass or one epoch."""

    paths: Paths
    beds: tuple[Bed | None, ...]
    """Per slot; None where nothing grows."""
    parameters: Tensor
    """Flat memory of all groups' parameters, slot by slot."""
    momentum: Tensor
    """Likewise."""

    def groups(self) -> list[tuple[int, Group]]:
        """(slot, group) in the order of the flat memory."""
        return [(slot, group) for slot, bed in enumerate(self.beds) if bed is not None for group in bed.groups]


def gather(
    store: SeedStore,
    roles: Roles,
    blueprints: Sequence[Blueprint],
    sites: Sequence[Site],
    *,
    in_training: bool,
    leave_one_out: bool = True,
) -> Growth:
    """Pack the seeds that take part; in evaluation, extra rows leave out one seed each, if they are wanted."""
    hosts, slots = roles.alpha.shape
    is_felt = roles.alpha > 0
    takes_part = is_felt | roles.is_incubating if in_training else is_felt
    paths = _paths(hosts, roles.is_incubating if in_training else is_felt & leave_one_out)
    cells = [
        (slot, index, np.flatnonzero(takes_part[:, slot] & (roles.blueprint[:, slot] == index)))
        for slot in range(slots)
        for index in np.unique(roles.blueprint[takes_part[:, slot], slot]).tolist()
    ]
    widths = [blueprints[index].parameters(sites[slot]) for slot, index, _ in cells]
    sizes = [len(members) * width for (_, _, members), width in zip(cells, widths, strict=True)]
    flat, momentum = torch.empty(sum(sizes)), torch.empty(sum(sizes) if in_training else 0)
    planted: list[list[Group]] = [[] for _ in range(slots)]
    rows: list[list[tuple[Ints, Ints, NDArray[np.float32]]]] = [[] for _ in range(slots)]
    for (slot, index, members), width, mine in zip(cells, widths, torch.split(flat, sizes), strict=True):
        mine = mine.view(len(members), width)
        torch.index_select(store.parameters[:, slot, :width], 0, torch.from_numpy(members), out=mine)
        source, target, scale, passenger = _route(paths, slot, members, is_felt[:, slot], roles.alpha[:, slot])
        planted[slot].append(Group(blueprints[index], members, is_felt[members, slot], mine, passenger))
        rows[slot].append((source, target, scale))
    growth = Growth(paths, tuple(map(_bed, planted, rows)), flat, momentum)
    if in_training:
        for (slot, group), mine in zip(growth.groups(), torch.split(momentum, sizes), strict=True):
            values = store.momentum[torch.from_numpy(group.hosts), slot, : group.parameters.shape[1]]
            mine.copy_(values.view(-1))
    return growth


def scatter(growth: Growth, store: SeedStore) -> None:
    """Put trained seeds back where they came from."""
    groups = growth.groups()
    cuts = torch.split(growth.momentum, [group.parameters.numel() for _, group in groups])
    for (slot, group), momentum in zip(groups, cuts, strict=True):
        hosts, width = torch.from_numpy(group.hosts), group.parameters.shape[1]
        store.parameters[:, slot, :width].index_copy_(0, hosts, group.parameters.detach())
        store.momentum[:, slot, :width].index_copy_(0, hosts, momentum.view_as(group.parameters))


def _paths(hosts: int, branching: NDArray[np.bool_]) -> Paths:
    starts = [np.flatnonzero(column) for column in branching.T]
    counts = np.cumsum([hosts, *(len(start) for start in starts)])
    rows = np.concatenate([np.arange(hosts), *starts])
    return Paths(torch.from_numpy(rows), tuple(counts.tolist()), tuple(torch.from_numpy(start) for start in starts))


def _bed(groups: Sequence[Group], rows: Sequence[tuple[Ints, Ints, NDArray[np.float32]]]) -> Bed | None:
    if not groups:
        return None
    source, target, scale = (np.concatenate(column) for column in zip(*rows, strict=True))
    return Bed(
        tuple(groups),
        [len(one[0]) for one in rows],
        torch.from_numpy(source),
        torch.from_numpy(target),
        torch.from_numpy(scale),
    )


def _route(
    paths: Paths, slot: int, members: Ints, is_felt: NDArray[np.bool_], alpha: NDArray[np.float32]
) -> tuple[Ints, Ints, NDArray[np.float32], Tensor | None]:
    """Source rows, target rows, scales and passengers of one group."""
    started = paths.starts[slot].numpy()
    own = np.where(is_felt[members], members, paths.counts[slot] + np.searchsorted(started, members))
    own_scale = np.where(is_felt[members], alpha[members], np.float32(1.0))
    earlier = paths.hosts.numpy()[paths.counts[0] : paths.counts[slot]]
    seats = np.minimum(np.searchsorted(members, earlier), len(members) - 1)
    riding = np.flatnonzero((members[seats] == earlier) & is_felt[earlier])
    seats, riding = seats[riding], riding + paths.counts[0]
    return (
        np.concatenate([members, riding]),
        np.concatenate([own, riding]),
        np.concatenate([own_scale, alpha[members[seats]]]).astype(np.float32),
        torch.from_numpy(seats) if len(seats) else None,
    )
