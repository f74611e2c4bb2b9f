"""The forward pass of all hosts in constant shapes, so that a GPU can replay one captured CUDA graph.

In every slot of every host all allowed blueprints are computed, and masks select the result. Selection uses ``where``
and never multiplies, because 0 times infinity is not 0. Unselected results are computed from the stand-ins on which
gate G0 checked the blueprint: otherwise a zero gradient would become NaN in a computation that overflowed.

After each slot N *side rows* branch off, one per host. In training a side row is the host with that slot's incubating
seed at alpha 1; in evaluation it is the host without that slot's seed, the counterfactual. Side rows pass through the
active seeds of later slots without gradient; unused side rows are computed and ignored.
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
from simic.hosts.batched.trunk import Trunk
from simic.hosts.blueprint_checks import change_of, initial_seeds_and_states
from simic.hosts.interfaces import Blueprint, SeedAssignment, Site

__all__ = ["BlueprintOption", "ForwardResult", "SeedTensors", "StepInputs", "column", "options_of", "run"]


class BlueprintOption(NamedTuple):
    """A blueprint that is allowed in a slot, with stand-in inputs."""

    number: int
    """Index in ``SeedAssignment.blueprint``."""
    blueprint: Blueprint
    parameters: Tensor
    """[P]: stand-in parameters that passed G0."""
    state: Tensor
    """[*space, D]: stand-in state that passed G0."""


class SeedTensors(NamedTuple):
    """A ``SeedAssignment`` as tensors [N, S], always in the same memory."""

    blueprint: Tensor
    """int64"""
    alpha: Tensor
    is_incubating: Tensor
    width: Tensor
    """int64: parameters of participating seeds, else 0."""

    @staticmethod
    def empty(hosts: int, slots: int, device: torch.device) -> SeedTensors:
        """Return an assignment without seeds."""
        words = torch.zeros(2, hosts, slots, dtype=torch.int64, device=device)
        alpha = torch.zeros(hosts, slots, device=device)
        return SeedTensors(words[0], alpha, alpha.bool(), words[1])

    @property
    def is_active(self) -> Tensor:
        """Return bool [N, S]: the seed is active (alpha > 0)."""
        return self.alpha > 0

    def member(self, slot: int, blueprint: int) -> Tensor:
        """Return bool [N]: the slot's seed participates and has that blueprint."""
        takes_part = self.is_active[:, slot] | self.is_incubating[:, slot]
        return takes_part & (self.blueprint[:, slot] == blueprint)

    def set(self, assignment: SeedAssignment, sizes: NDArray[np.int64]) -> None:
        """Copy an assignment; ``sizes`` [S, K] are parameters, -1 where a blueprint is not allowed."""
        is_active = assignment.alpha > 0
        incubating = assignment.is_incubating & ~is_active
        takes_part = is_active | incubating
        slots = np.broadcast_to(np.arange(len(sizes)), is_active.shape)
        width = np.where(takes_part, sizes[slots, assignment.blueprint], 0)
        if (width < 0).any():
            host, slot = np.argwhere(width < 0)[0].tolist()
            raise ConfigError(
                f"host in row {host}, slot {slot}: blueprint {assignment.blueprint[host, slot]} takes part, but this "
                f"masked form was built for {np.flatnonzero(sizes[slot] >= 0).tolist()} there; "
                "offer it when hosts are made"
            )
        values = (assignment.blueprint.astype(np.int64), assignment.alpha, incubating, width)
        for mine, theirs in zip(self, values, strict=True):
            mine.copy_(torch.from_numpy(theirs))


class StepInputs(NamedTuple):
    """Inputs of one pass."""

    inputs: Tensor
    """[N, B, ...]"""
    gains: Sequence[Tensor | None]
    """Per block: [N, B, 1], or None where no host has one."""
    noise: Sequence[Tensor | None]
    """Per slot: [N, B, D] uniform in training, if a blueprint is noisy."""


class ForwardResult(NamedTuple):
    """Outputs of one pass."""

    logits: Tensor
    """[N, C, B]"""
    side: Tensor | None
    """[S * N, C, B], by slot, if side rows were requested."""
    states: list[Tensor]
    """Per slot: the hosts' states before it, [N, B, *space, D]."""
    changes: list[Tensor]
    """Per slot: change of the state at alpha 1; 0 without a participating seed."""


def options_of(
    blueprints: Sequence[Blueprint], offered: Sequence[int], sites: Sequence[Site], device: torch.device
) -> tuple[tuple[BlueprintOption, ...], ...]:
    """Return the allowed blueprints that suit each slot."""
    suited = [[(index, blueprints[index]) for index in offered if blueprints[index].suits(site)] for site in sites]
    return tuple(
        tuple(
            BlueprintOption(index, blueprint, *(x.to(device) for x in _stand_ins(blueprint, site)))
            for index, blueprint in row
        )
        for row, site in zip(suited, sites, strict=True)
    )


def _stand_ins(blueprint: Blueprint, site: Site) -> tuple[Tensor, Tensor]:
    parameters, states = initial_seeds_and_states(blueprint, site)
    return parameters[0].clone(), states[0, 0].clone()


def run(
    trunk: Trunk,
    parts: Sequence[Tensor],
    seeds: Sequence[Tensor],
    options: Sequence[Sequence[BlueprintOption]],
    seed_tensors: SeedTensors,
    shown: StepInputs,
    *,
    has_side: bool,
) -> ForwardResult:
    """Compute logits from inputs with the hosts' ``parts`` and the ``seeds`` [N, P] of each slot."""
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
        active = column(seed_tensors.is_active[:, slot], x.dim())
        h = torch.where(active, x, x.detach()) if x.requires_grad else x
        if has_side and slot:
            h = torch.cat([h, side])
        change = _change(mine, seed_tensors, slot, seeds[slot], h, shown.noise[slot])
        changes.append(change[: len(x)])
        alpha = column(seed_tensors.alpha[:, slot], x.dim())
        if has_side:
            learns = column(seed_tensors.is_incubating[:, slot], x.dim())
            branch = torch.where(learns, x.detach() + changes[-1], x.detach())
            side = torch.cat([_blended(side, change[len(x) :], active, alpha), branch]) if slot else branch
        x = _blended(x, changes[-1], active, alpha)
    logits = trunk.logits(parts, x)
    return ForwardResult(logits, trunk.logits(tiled, side) if has_side else None, states, changes)


def _change(
    options: Sequence[BlueprintOption],
    seed_tensors: SeedTensors,
    slot: int,
    seeds: Tensor,
    h: Tensor,
    noise: Tensor | None,
) -> Tensor:
    """Return the change at alpha 1 of states h [blocks * N, B, *space, D]; only the first N rows give gradients."""
    blocks = len(h) // len(seeds)
    change = torch.zeros_like(h)
    drawn = None if noise is None else _tiled(noise, blocks)
    for option in options:
        is_member = seed_tensors.member(slot, option.number)
        own = torch.where(is_member[:, None], seeds[:, : len(option.parameters)], option.parameters)
        parameters = own if blocks == 1 else torch.cat([own, _tiled(own.detach(), blocks - 1)])
        chosen = column(_tiled(is_member, blocks), h.dim())
        state = torch.where(chosen, h, option.state)
        delta = option.blueprint.delta(parameters, state, drawn if option.blueprint.is_noisy else None)
        change = torch.where(chosen, change_of(option.blueprint.operator, state, delta), change)
    return change


def _blended(x: Tensor, change: Tensor, active: Tensor, alpha: Tensor) -> Tensor:
    blocks = len(x) // len(active)
    return torch.where(_tiled(active, blocks), x + change * _tiled(alpha, blocks), x)


def _scaled(x: Tensor, gain: Tensor | None) -> Tensor:
    return x if gain is None else x * gain.view(*gain.shape[:2], *[1] * (x.dim() - 2))


def _tiled(values: Tensor, times: int) -> Tensor:
    """Repeat [N, ...] to [times * N, ...], block by block."""
    return values if times == 1 else values.repeat(times, *[1] * (values.dim() - 1))


def column(values: Tensor, dims: int) -> Tensor:
    """Reshape one value per row to broadcast against rows of ``dims`` dimensions."""
    return values.view(-1, *[1] * (dims - 1))
