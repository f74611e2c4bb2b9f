"""One way through all hosts in shapes that no lifecycle changes, so that a GPU can replay one recording for ever.

In every slot of every host every blueprint that may grow there is computed, and masks say whose result counts. They
choose by ``where`` and never multiply, because 0 times infinity is not 0. What is not chosen is computed from the
stand-ins on which gate G0 judged the blueprint, not from whatever lies there: even a gradient of zero turns into NaN on
its way through a computation that overflowed.

Behind each slot N *side rows* branch off, one per host: in training the host with that slot's incubating seed at
alpha 1, and otherwise the host without that slot's seed, which in evaluation is the counterfactual. Where a host has no
use for its side row, nobody reads it. Side rows pass through the seeds that their host feels in later slots, and teach
neither those nor the host anything.
Shapes: N hosts, S slots, K blueprints, P parameters of a seed, B samples, D features of a position, C classes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from simic.contracts.errors import ConfigError
from simic.hosts.operators import change_of
from simic.hosts.protocols import Blueprint, Roles, Site
from simic.hosts.sanity import newborns
from simic.hosts.stacked.trunk import Trunk

__all__ = ["Cast", "Flow", "Option", "Shown", "column", "options_of", "run"]


class Option(NamedTuple):
    """A blueprint that may grow in a slot."""

    number: int
    """In ``Roles.blueprint``."""
    blueprint: Blueprint
    parameters: Tensor
    """[P]: of a seed that is known to be sane."""
    state: Tensor
    """[*space, D]: of a sample on which it is."""


class Cast(NamedTuple):
    """Which seeds do what, [N, S] each; always the same memory."""

    blueprint: Tensor
    """int64"""
    alpha: Tensor
    is_incubating: Tensor
    width: Tensor
    """int64: parameters of the seeds that take part, else 0."""

    @staticmethod
    def empty(hosts: int, slots: int, device: torch.device) -> Cast:
        """Nobody does anything."""
        words = torch.zeros(2, hosts, slots, dtype=torch.int64, device=device)
        alpha = torch.zeros(hosts, slots, device=device)
        return Cast(words[0], alpha, alpha.bool(), words[1])

    @property
    def is_felt(self) -> Tensor:
        """Where the host feels its seed."""
        return self.alpha > 0

    def member(self, slot: int, blueprint: int) -> Tensor:
        """Whose seed in a slot takes part and is of that blueprint, [N]."""
        takes_part = self.is_felt[:, slot] | self.is_incubating[:, slot]
        return takes_part & (self.blueprint[:, slot] == blueprint)

    def set(self, roles: Roles, sizes: NDArray[np.int64]) -> None:
        """Give out roles; ``sizes`` [S, K] are parameters, -1 where a blueprint may not grow."""
        is_felt = roles.alpha > 0
        incubating = roles.is_incubating & ~is_felt
        takes_part = is_felt | incubating
        slots = np.broadcast_to(np.arange(len(sizes)), is_felt.shape)
        width = np.where(takes_part, sizes[slots, roles.blueprint], 0)
        if (width < 0).any():
            host, slot = np.argwhere(width < 0)[0].tolist()
            raise ConfigError(
                f"host in row {host}, slot {slot}: blueprint {roles.blueprint[host, slot]} takes part, but this masked "
                f"form was built for {np.flatnonzero(sizes[slot] >= 0).tolist()} there; offer it when hosts are made"
            )
        values = (roles.blueprint.astype(np.int64), roles.alpha, incubating, width)
        for mine, theirs in zip(self, values, strict=True):
            mine.copy_(torch.from_numpy(theirs))


class Shown(NamedTuple):
    """What a pass is shown."""

    inputs: Tensor
    """[N, B, ...]"""
    gains: Sequence[Tensor | None]
    """Per block: [N, B, 1], or None where no host has one."""
    noise: Sequence[Tensor | None]
    """Per slot: [N, B, D] uniform while training, if a blueprint wants it."""


class Flow(NamedTuple):
    """What came of a pass."""

    logits: Tensor
    """[N, C, B]"""
    side: Tensor | None
    """[S * N, C, B], slot by slot, if side rows were wanted."""
    states: list[Tensor]
    """Per slot: the hosts' states in front of it, [N, B, *space, D]."""
    changes: list[Tensor]
    """Per slot: what the state gains at alpha 1; 0 where no seed takes part."""


def options_of(
    blueprints: Sequence[Blueprint], offered: Sequence[int], sites: Sequence[Site], device: torch.device
) -> tuple[tuple[Option, ...], ...]:
    """Per slot, what of the offered blueprints suits it."""
    suited = [[(index, blueprints[index]) for index in offered if blueprints[index].suits(site)] for site in sites]
    return tuple(
        tuple(Option(index, one, *(x.to(device) for x in _stand_ins(one, site))) for index, one in row)
        for row, site in zip(suited, sites, strict=True)
    )


def _stand_ins(blueprint: Blueprint, site: Site) -> tuple[Tensor, Tensor]:
    parameters, states = newborns(blueprint, site)
    return parameters[0].clone(), states[0, 0].clone()


def run(
    trunk: Trunk,
    parts: Sequence[Tensor],
    seeds: Sequence[Tensor],
    options: Sequence[Sequence[Option]],
    cast: Cast,
    shown: Shown,
    *,
    has_side: bool,
) -> Flow:
    """From inputs to logits, by the hosts' ``parts`` and per slot the ``seeds`` [N, P]."""
    x, side = trunk.stem(parts, shown.inputs), shown.inputs.new_empty(0)
    tiled = [_tiled(part.detach(), spec.depth) for part, spec in zip(parts, trunk.parts, strict=True)]
    states, changes = [], []
    for slot, mine in enumerate(options):
        if slot:
            gain = shown.gains[slot - 1]
            x = _scaled(trunk.block(slot - 1, parts, x), gain)
            if has_side:
                gain = None if gain is None else _tiled(gain, slot)
                side = _scaled(trunk.block(slot - 1, tiled, side), gain)
        states.append(x)
        felt = column(cast.is_felt[:, slot], x.dim())
        h = torch.where(felt, x, x.detach()) if x.requires_grad else x
        if has_side and slot:
            h = torch.cat([h, side])
        change = _change(mine, cast, slot, seeds[slot], h, shown.noise[slot])
        changes.append(change[: len(x)])
        alpha = column(cast.alpha[:, slot], x.dim())
        if has_side:
            learns = column(cast.is_incubating[:, slot], x.dim())
            branch = torch.where(learns, x.detach() + changes[-1], x.detach())
            side = torch.cat([_blended(side, change[len(x) :], felt, alpha), branch]) if slot else branch
        x = _blended(x, changes[-1], felt, alpha)
    logits = trunk.logits(parts, x)
    return Flow(logits, trunk.logits(tiled, side) if has_side else None, states, changes)


def _change(options: Sequence[Option], cast: Cast, slot: int, seeds: Tensor, h: Tensor, noise: Tensor | None) -> Tensor:
    """What states h [blocks * N, B, *space, D] gain at alpha 1 from their hosts' seeds; the first N rows teach them."""
    blocks = len(h) // len(seeds)
    change = torch.zeros_like(h)
    drawn = None if noise is None else _tiled(noise, blocks)
    for option in options:
        is_member = cast.member(slot, option.number)
        own = torch.where(is_member[:, None], seeds[:, : len(option.parameters)], option.parameters)
        parameters = own if blocks == 1 else torch.cat([own, _tiled(own.detach(), blocks - 1)])
        chosen = column(_tiled(is_member, blocks), h.dim())
        state = torch.where(chosen, h, option.state)
        delta = option.blueprint.delta(parameters, state, drawn if option.blueprint.is_noisy else None)
        change = torch.where(chosen, change_of(option.blueprint.operator, state, delta), change)
    return change


def _blended(x: Tensor, change: Tensor, felt: Tensor, alpha: Tensor) -> Tensor:
    blocks = len(x) // len(felt)
    return torch.where(_tiled(felt, blocks), x + change * _tiled(alpha, blocks), x)


def _scaled(x: Tensor, gain: Tensor | None) -> Tensor:
    return x if gain is None else x * gain.view(*gain.shape[:2], *[1] * (x.dim() - 2))


def _tiled(values: Tensor, times: int) -> Tensor:
    """[N, ...] -> [times * N, ...], block by block."""
    return values if times == 1 else values.repeat(times, *[1] * (values.dim() - 1))


def column(values: Tensor, dims: int) -> Tensor:
    """One value per row, shaped to meet rows of so many dimensions."""
    return values.view(-1, *[1] * (dims - 1))
