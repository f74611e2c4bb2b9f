"""Seeds packed for one epoch, and the extra paths that run beside the hosts' own.

The lifecycle changes only between epochs, so the seeds that take part are gathered once into one contiguous
group per slot and blueprint, and scattered back when the epoch is over.

A *row* is one path through the network. Rows 0 .. N-1 are the hosts themselves. Extra rows branch off in front
of a slot: in training, a seed that learns in isolation runs its own blended network there; in evaluation, the
network without that slot's seed does. Rows keep their order and only grow, so every layer works on a prefix.
Extra rows also pass through the active seeds of later slots, sharing those seeds' parameters without gradient.
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

from simic.hosts.batched.weights import SeedStore
from simic.hosts.blueprint_checks import change_of
from simic.hosts.interfaces import Blueprint, SeedAssignment, Site

__all__ = ["PackedSeeds", "RowLayout", "SeedGroup", "SlotSeeds", "pack_seeds", "unpack_seeds"]

Ints = NDArray[np.int64]
_AT_A_TIME = 2**18
"""Floats per call of a blueprint in evaluation, so that its intermediate results fit into the cache."""


class RowLayout(NamedTuple):
    """The rows of a pass: one per host, then the extra rows that start at each slot."""

    hosts: Tensor
    """int64 [R]: the host whose weights a row uses."""
    counts: tuple[int, ...]
    """[S + 1]: rows before the first slot (N), then after each slot."""
    starts: tuple[Tensor, ...]
    """Per slot, int64: the host rows that its extra rows copy."""

    def per_row(self, values: Tensor, slot: int) -> Tensor:
        """Return host values [N, ...] for the rows before a slot; ``slot`` S means all rows."""
        count = self.counts[slot]
        return values if count == self.counts[0] else values.index_select(0, self.hosts[:count])

    def allocate(self, x: Tensor, slot: int) -> Tensor:
        """Allocate memory like ``x`` for all rows that enter a slot."""
        return x.new_empty(self.counts[slot + 1], *x.shape[1:])

    def branch(self, x: Tensor, slot: int) -> Tensor:
        """Return the rows that enter a slot; rows that start there are copies, written into ``x`` if it has room."""
        starts, known = self.starts[slot], self.counts[slot]
        if not len(starts):
            return x
        if len(x) == known:
            return torch.cat([x, x.index_select(0, starts)])
        x[known:] = x.index_select(0, starts)
        return x


@dataclass
class SeedGroup:
    """Seeds of one blueprint in one slot."""

    blueprint: Blueprint
    hosts: Ints
    """[n]"""
    is_active: NDArray[np.bool_]
    """[n]: the seed is active; the others learn in isolation."""
    parameters: Tensor
    """[n, P], a leaf in training."""
    shared_rows: Tensor | None
    """int64: the seed of each extra row that passes through, after the seeds' own rows."""

    def change(self, h: Tensor, noise: Tensor | None) -> Tensor:
        """Return the change of rows h [n + shared rows, B, *space, D] at alpha 1; shared rows give no gradient."""
        parameters = self.parameters
        if self.shared_rows is not None:
            parameters = torch.cat([parameters, parameters.detach().index_select(0, self.shared_rows)])
            noise = None if noise is None else torch.cat([noise, noise.index_select(0, self.shared_rows)])
        if torch.is_grad_enabled() or noise is not None:
            return change_of(self.blueprint.operator, h, self.blueprint.delta(parameters, h, noise))
        some = max(2, _AT_A_TIME // max(1, h[0].numel()))
        pieces = zip(torch.split(parameters, some), torch.split(h, some), strict=True)
        return torch.cat([change_of(self.blueprint.operator, x, self.blueprint.delta(p, x, None)) for p, x in pieces])


@dataclass
class SlotSeeds:
    """All groups of one slot; their rows are concatenated."""

    groups: tuple[SeedGroup, ...]
    sizes: list[int]
    """Rows per group."""
    source: Tensor
    """int64 [rows]: rows read."""
    target: Tensor
    """int64 [rows]: rows written."""
    scale: Tensor
    """[rows]: alpha."""

    def change(self, h: Tensor, noise: Sequence[Tensor | None]) -> Tensor:
        """Return alpha times the change at alpha 1 for the rows ``h`` [rows, B, *space, D]."""
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


class PackedSeeds(NamedTuple):
    """All participating seeds, packed for one pass or one epoch."""

    layout: RowLayout
    by_slot: tuple[SlotSeeds | None, ...]
    """Per slot; None without a participating seed."""
    parameters: Tensor
    """Flat memory of all groups' parameters, by slot."""
    momentum: Tensor
    """Flat memory of all groups' momenta, by slot."""

    def groups(self) -> list[tuple[int, SeedGroup]]:
        """Return (slot, group) in the order of the flat memory."""
        return [
            (slot, group)
            for slot, slot_seeds in enumerate(self.by_slot)
            if slot_seeds is not None
            for group in slot_seeds.groups
        ]


def pack_seeds(
    store: SeedStore,
    assignment: SeedAssignment,
    blueprints: Sequence[Blueprint],
    sites: Sequence[Site],
    *,
    in_training: bool,
    leave_one_out: bool = True,
) -> PackedSeeds:
    """Pack the participating seeds; in evaluation with ``leave_one_out``, extra rows leave out one seed each."""
    hosts, slots = assignment.alpha.shape
    is_active = assignment.alpha > 0
    takes_part = is_active | assignment.is_incubating if in_training else is_active
    layout = _row_layout(hosts, assignment.is_incubating if in_training else is_active & leave_one_out)
    cells = [
        (slot, index, np.flatnonzero(takes_part[:, slot] & (assignment.blueprint[:, slot] == index)))
        for slot in range(slots)
        for index in np.unique(assignment.blueprint[takes_part[:, slot], slot]).tolist()
    ]
    widths = [blueprints[index].parameters(sites[slot]) for slot, index, _ in cells]
    sizes = [len(members) * width for (_, _, members), width in zip(cells, widths, strict=True)]
    flat, momentum = torch.empty(sum(sizes)), torch.empty(sum(sizes) if in_training else 0)
    groups_of: list[list[SeedGroup]] = [[] for _ in range(slots)]
    rows: list[list[tuple[Ints, Ints, NDArray[np.float32]]]] = [[] for _ in range(slots)]
    for (slot, index, members), width, mine in zip(cells, widths, torch.split(flat, sizes), strict=True):
        mine = mine.view(len(members), width)
        torch.index_select(store.parameters[:, slot, :width], 0, torch.from_numpy(members), out=mine)
        source, target, scale, shared_rows = _rows_of_group(
            layout, slot, members, is_active[:, slot], assignment.alpha[:, slot]
        )
        groups_of[slot].append(SeedGroup(blueprints[index], members, is_active[members, slot], mine, shared_rows))
        rows[slot].append((source, target, scale))
    packed = PackedSeeds(layout, tuple(map(_slot_seeds, groups_of, rows)), flat, momentum)
    if in_training:
        for (slot, group), mine in zip(packed.groups(), torch.split(momentum, sizes), strict=True):
            values = store.momentum[torch.from_numpy(group.hosts), slot, : group.parameters.shape[1]]
            mine.copy_(values.view(-1))
    return packed


def unpack_seeds(packed: PackedSeeds, store: SeedStore) -> None:
    """Write trained seeds back into the store."""
    groups = packed.groups()
    cuts = torch.split(packed.momentum, [group.parameters.numel() for _, group in groups])
    for (slot, group), momentum in zip(groups, cuts, strict=True):
        hosts, width = torch.from_numpy(group.hosts), group.parameters.shape[1]
        store.parameters[:, slot, :width].index_copy_(0, hosts, group.parameters.detach())
        store.momentum[:, slot, :width].index_copy_(0, hosts, momentum.view_as(group.parameters))


def _row_layout(hosts: int, branching: NDArray[np.bool_]) -> RowLayout:
    starts = [np.flatnonzero(column) for column in branching.T]
    counts = np.cumsum([hosts, *(len(start) for start in starts)])
    rows = np.concatenate([np.arange(hosts), *starts])
    return RowLayout(torch.from_numpy(rows), tuple(counts.tolist()), tuple(torch.from_numpy(start) for start in starts))


def _slot_seeds(
    groups: Sequence[SeedGroup], rows: Sequence[tuple[Ints, Ints, NDArray[np.float32]]]
) -> SlotSeeds | None:
    if not groups:
        return None
    source, target, scale = (np.concatenate(column) for column in zip(*rows, strict=True))
    return SlotSeeds(
        tuple(groups),
        [len(columns[0]) for columns in rows],
        torch.from_numpy(source),
        torch.from_numpy(target),
        torch.from_numpy(scale),
    )


def _rows_of_group(
    layout: RowLayout, slot: int, members: Ints, is_active: NDArray[np.bool_], alpha: NDArray[np.float32]
) -> tuple[Ints, Ints, NDArray[np.float32], Tensor | None]:
    """Return source rows, target rows, scales and shared rows of one group."""
    started = layout.starts[slot].numpy()
    own = np.where(is_active[members], members, layout.counts[slot] + np.searchsorted(started, members))
    own_scale = np.where(is_active[members], alpha[members], np.float32(1.0))
    earlier = layout.hosts.numpy()[layout.counts[0] : layout.counts[slot]]
    owners = np.minimum(np.searchsorted(members, earlier), len(members) - 1)
    shared = np.flatnonzero((members[owners] == earlier) & is_active[earlier])
    owners, shared = owners[shared], shared + layout.counts[0]
    return (
        np.concatenate([members, shared]),
        np.concatenate([own, shared]),
        np.concatenate([own_scale, alpha[members[owners]]]).astype(np.float32),
        torch.from_numpy(owners) if len(owners) else None,
    )
