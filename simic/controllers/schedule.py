"""Fixed plans: germinate at an epoch, then advance and fossilise as soon as either is legal.

``schedule`` follows the plan it is given, ``blind`` the best one for all hosts, and ``oracle`` the best one for each
host's true family, which no honest controller can see: it marks how much there is to gain.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from simic.contracts.actions import ALPHA_CURVES, ALPHA_SPEEDS, ALPHA_TARGETS, HEADS, TEMPOS, Op
from simic.contracts.batches import OP_INDEX, Decisions, Masks, Observations
from simic.contracts.controllers import Plan, PlannedSeed
from simic.contracts.errors import ConfigError, ContractViolation
from simic.contracts.state import HostIdentity
from simic.controllers.choice import certain
from simic.controllers.plans import load_plans
from simic.controllers.request import Request

__all__ = ["ScheduleController", "make_blind", "make_oracle", "make_schedule"]


class _Step(NamedTuple):
    """A planned seed as head indices; the blueprint by name, as vocabularies may differ."""

    epoch: int
    slot: int
    blueprint: str
    target: int
    speed: int
    curve: int
    tempo: int

    def row(self, op: Op, slot: int, blueprint: int) -> list[int]:
        """Action [heads]; irrelevant heads are dropped later."""
        return [OP_INDEX[op], slot, blueprint, self.target, self.speed, self.curve, self.tempo]


class ScheduleController:
    """One plan per host; looks at the epoch and at what is legal, and at nothing else."""

    policy_version: str | None = None

    def __init__(self, name: str, plans: Sequence[Plan]) -> None:
        self.name = name
        self._plans = [[_compile(seed) for seed in plan.seeds] for plan in plans]

    def decide(self, observations: Observations, masks: Masks, uniforms: NDArray[Any]) -> Decisions:  # noqa: ARG002
        """One legal action per host."""
        if len(observations) != len(self._plans):
            raise ContractViolation(f"{len(self._plans)} plans cannot steer {len(observations)} hosts")
        actions = np.zeros((len(observations), len(HEADS)), dtype=np.int16)
        vocabulary = {name: index for index, name in enumerate(observations.blueprints)}
        epochs = observations.system["epoch"].tolist()
        for host, plan in enumerate(self._plans):
            own = slice(observations.slot_ptr[host], observations.slot_ptr[host + 1])
            actions[host] = _next(plan, epochs[host], masks.slot[own], masks.blueprint[host], vocabulary)
        return certain(actions)


def _next(
    plan: Sequence[_Step],
    epoch: int,
    legal: NDArray[np.bool_],
    blueprints: NDArray[np.bool_],
    vocabulary: Mapping[str, int],
) -> list[int]:
    """The action [heads] of one host; ``legal`` [slots, ops], ``blueprints`` [K]."""
    started = {step.slot: step for step in plan if step.epoch <= epoch}
    for op in (Op.FOSSILIZE, Op.ADVANCE):
        for slot, step in started.items():
            if slot < len(legal) and legal[slot, OP_INDEX[op]]:
                return step.row(op, slot, 0)
    for step in plan:
        if step.blueprint not in vocabulary:
            raise ConfigError(f"plan wants blueprint {step.blueprint!r}; known are {sorted(vocabulary)}")
        blueprint = vocabulary[step.blueprint]
        is_possible = step.slot < len(legal) and legal[step.slot, OP_INDEX[Op.GERMINATE]] and blueprints[blueprint]
        if step.epoch == epoch and is_possible:
            return step.row(Op.GERMINATE, step.slot, blueprint)
    return [OP_INDEX[Op.WAIT], 0, 0, 0, 0, 0, 0]


def _compile(seed: PlannedSeed) -> _Step:
    chosen = (seed.alpha_target, seed.alpha_speed, seed.alpha_curve, seed.tempo)
    options: tuple[Sequence[Any], ...] = (ALPHA_TARGETS, ALPHA_SPEEDS, ALPHA_CURVES, TEMPOS)
    for value, known in zip(chosen, options, strict=True):
        if value not in known:
            raise ConfigError(f"plan wants {value}, which is none of {list(known)}")
    indices = [known.index(value) for value, known in zip(chosen, options, strict=True)]
    return _Step(seed.epoch, seed.slot, seed.blueprint, *indices)


def make_schedule(request: Request) -> ScheduleController:
    """The plan of the spec, for every host."""
    if request.spec.plan is None:
        raise ConfigError("controller 'schedule' needs a plan")
    return ScheduleController("schedule", [request.spec.plan] * len(request.hosts))


def make_blind(request: Request) -> ScheduleController:
    """The best plan that looks at nothing, for every host."""
    hosts = _one_set(request.hosts)
    return ScheduleController("blind", [load_plans(hosts[0].set).blind] * len(hosts) if hosts else [])


def make_oracle(request: Request) -> ScheduleController:
    """The best plan of each host's family."""
    hosts = _one_set(request.hosts)
    by_family = load_plans(hosts[0].set).by_family if hosts else {}
    missing = sorted({host.family for host in hosts} - set(by_family))
    if missing:
        raise ConfigError(f"no plan for families {missing}; run `simic plans search --set {hosts[0].set}`")
    return ScheduleController("oracle", [by_family[host.family] for host in hosts])


def _one_set(hosts: Sequence[HostIdentity]) -> Sequence[HostIdentity]:
    names = sorted({host.set for host in hosts})
    if len(names) > 1:
        raise ConfigError(f"fixed plans serve one set of hosts at a time, found {names}")
    return hosts
