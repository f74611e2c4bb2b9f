"""Seeds packed for one epoch, and the extra paths that run beside the hosts' own.

The lifecycle changes only between epochs, so the seeds that take part are gathered once into one contiguous
group per slot and blueprint, and scattered back when the epoch is over.

A *row* is one path through the network. Rows 0 .. N-1 are the hosts themselves. Extra rows branch off in front
of a slot: in training, a seed that learns in isolation runs its own blended network there; in evaluation, the
network without that slot's seed does. Rows keep their order and only grow, so every layer works on a prefix.
Shapes: N hosts, S slots, R rows, n seeds of a group, P parameters, B samples, D width.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from simic.hosts.protocols import Blueprint
from simic.hosts.weights import SeedStore

__all__ = ["Group", "Growth", "Paths", "Roles", "gather", "scatter"]

Ints = NDArray[np.int64]


class Roles(NamedTuple):
    """Which seeds do what, [N, S] each."""

    blueprint: NDArray[np.int16]
    alpha: NDArray[np.float32]
    """0 where the seed has no effect on its host."""
    is_incubating: NDArray[np.bool_]
    """Learns beside its host, which does not feel it."""


class Paths(NamedTuple):
    """The rows."""

    hosts: Tensor
    """int64 [R]: whose weights a row uses."""
    counts: tuple[int, ...]
    """[S + 1]: rows before the first slot (N), then behind each slot."""
    starts: tuple[Tensor, ...]
    """Per slot, int64: the host rows its extra rows copy."""

    @property
    def has_branches(self) -> bool:
        """Whether there is any row but the hosts' own."""
        return self.counts[-1] > self.counts[0]


@dataclass
class Group:
    """Seeds of one blueprint in one slot."""

    slot: int
    blueprint: Blueprint
    hosts: Tensor
    """int64 [n]"""
    parameters: Tensor
    """[n, P], a leaf in training."""
    source: Tensor
    """int64 rows read: one per seed, then extra rows that pass through a blended seed."""
    target: Tensor
    """int64 rows written."""
    scale: Tensor
    """[rows, 1, 1]: alpha."""
    is_felt: NDArray[np.bool_]
    """[n]: the host feels the seed."""
    passenger: Tensor | None
    """int64: the seed each extra row passes through."""

    def apply(self, x: Tensor, noise: Tensor | None, *, in_training: bool) -> tuple[Tensor, Tensor]:
        """Write h + alpha delta into the target rows of ``x`` [R, B, D]; returns (h, alpha delta)."""
        h = x.index_select(0, self.source)
        with torch.set_grad_enabled(in_training):
            h.requires_grad_(in_training)
            parameters = self.parameters
            if self.passenger is not None:
                parameters = torch.cat([parameters, parameters.detach().index_select(0, self.passenger)])
                noise = None if noise is None else torch.cat([noise, noise.index_select(0, self.passenger)])
            change = self.blueprint.delta(parameters, h, noise) * self.scale
        x.index_copy_(0, self.target, h.detach() + change.detach())
        return h, change


class Growth(NamedTuple):
    """Everything that is grown, for one pass or one epoch."""

    paths: Paths
    groups: tuple[tuple[Group, ...], ...]
    """Per slot."""
    parameters: Tensor
    """Flat memory of all groups' parameters."""
    momentum: Tensor
    """Likewise."""


def gather(store: SeedStore, roles: Roles, blueprints: Sequence[Blueprint], *, in_training: bool) -> Growth:
    """Pack the seeds that take part."""
    hosts, slots = roles.alpha.shape
    is_felt = roles.alpha > 0
    takes_part = is_felt | roles.is_incubating if in_training else is_felt
    branching = roles.is_incubating if in_training else is_felt
    paths = _paths(hosts, branching)
    cells = [
        (slot, index, np.flatnonzero(takes_part[:, slot] & (roles.blueprint[:, slot] == index)))
        for slot in range(slots)
        for index in np.unique(roles.blueprint[takes_part[:, slot], slot]).tolist()
    ]
    sizes = [len(members) * blueprints[index].parameters for _, index, members in cells]
    flat = torch.empty(sum(sizes)), torch.empty(sum(sizes))
    groups: list[list[Group]] = [[] for _ in range(slots)]
    for (slot, index, members), mine, momentum in zip(
        cells, torch.split(flat[0], sizes), torch.split(flat[1], sizes), strict=True
    ):
        chosen, width = torch.from_numpy(members), blueprints[index].parameters
        mine = mine.view(len(members), width)
        torch.index_select(store.parameters[:, slot, :width], 0, chosen, out=mine)
        if in_training:
            torch.index_select(store.momentum[:, slot, :width], 0, chosen, out=momentum.view_as(mine))
        rows = _rows(paths, slot, members, is_felt[:, slot], roles.alpha[:, slot])
        groups[slot].append(Group(slot, blueprints[index], chosen, mine, *rows[:3], is_felt[members, slot], rows[3]))
    return Growth(paths, tuple(tuple(group) for group in groups), *flat)


def scatter(growth: Growth, store: SeedStore) -> None:
    """Put trained seeds back where they came from."""
    groups = [group for slot in growth.groups for group in slot]
    sizes = [group.parameters.numel() for group in groups]
    for group, momentum in zip(groups, torch.split(growth.momentum, sizes), strict=True):
        width = group.blueprint.parameters
        store.parameters[:, group.slot, :width].index_copy_(0, group.hosts, group.parameters.detach())
        store.momentum[:, group.slot, :width].index_copy_(0, group.hosts, momentum.view_as(group.parameters))


def _paths(hosts: int, branching: NDArray[np.bool_]) -> Paths:
    starts = [np.flatnonzero(column) for column in branching.T]
    counts = np.cumsum([hosts, *(len(start) for start in starts)])
    rows = np.concatenate([np.arange(hosts), *starts])
    return Paths(torch.from_numpy(rows), tuple(counts.tolist()), tuple(torch.from_numpy(start) for start in starts))


def _rows(
    paths: Paths, slot: int, members: Ints, is_felt: NDArray[np.bool_], alpha: NDArray[np.float32]
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """Source, target, scale and passenger of one group."""
    started = paths.starts[slot].numpy()
    own = np.where(is_felt[members], members, paths.counts[slot] + np.searchsorted(started, members))
    own_scale = np.where(is_felt[members], alpha[members], np.float32(1.0))
    earlier = paths.hosts.numpy()[paths.counts[0] : paths.counts[slot]]
    seats = np.minimum(np.searchsorted(members, earlier), len(members) - 1)
    riding = np.flatnonzero((members[seats] == earlier) & is_felt[earlier])
    seats, riding = seats[riding], riding + paths.counts[0]
    scale = np.concatenate([own_scale, alpha[members[seats]]]).astype(np.float32)
    return (
        torch.from_numpy(np.concatenate([members, riding])),
        torch.from_numpy(np.concatenate([own, riding])),
        torch.from_numpy(scale)[:, None, None],
        torch.from_numpy(seats) if len(seats) else None,
    )
