"""Fixed plans: germinate at an epoch, and otherwise advance and fossilise as soon as either is legal.

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
from simic.controllers.choice import certain
from simic.controllers.plans import family_plans, load_plans, one_set
from simic.controllers.request import Request

__all__ = ["PlannedStep", "ScheduleController", "compile_seed", "make_blind", "make_oracle", "make_schedule"]


class PlannedStep(NamedTuple):
    """A planned seed as head indices; the blueprint by name, as vocabularies may differ."""

    epoch: int
    slot: int
    blueprint: str
    target: int
    speed: int
    curve: int
    tempo: int

    def index_in(self, vocabulary: Mapping[str, int]) -> int:
        """Of the blueprint; one that no host knows is a ConfigError."""
        if self.blueprint not in vocabulary:
            raise ConfigError(f"plan wants blueprint {self.blueprint!r}; known are {sorted(vocabulary)}")
        return vocabulary[self.blueprint]

    def row(self, op: Op, slot: int, blueprint: int) -> list[int]:
        """Action [heads]; irrelevant heads are dropped later."""
        return [OP_INDEX[op], slot, blueprint, self.target, self.speed, self.curve, self.tempo]


class ScheduleController:
    """One plan per host; looks at the epoch and at what is legal, and at nothing else."""

    policy_version: str | None = None

    def __init__(self, name: str, plans: Sequence[Plan]) -> None:
        self.name = name
        self._plans = [[compile_seed(seed) for seed in plan.seeds] for plan in plans]

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
    plan: Sequence[PlannedStep],
    epoch: int,
    legal: NDArray[np.bool_],
    blueprints: NDArray[np.bool_],
    vocabulary: Mapping[str, int],
) -> list[int]:
    """The action [heads] of one host; ``legal`` [slots, ops], ``blueprints`` [K]."""
    for step in plan:
        blueprint = step.index_in(vocabulary)
        is_possible = step.slot < len(legal) and legal[step.slot, OP_INDEX[Op.GERMINATE]] and blueprints[blueprint]
        if step.epoch == epoch and is_possible:
            return step.row(Op.GERMINATE, step.slot, blueprint)
    started = {step.slot: step for step in plan if step.epoch <= epoch}
    for op in (Op.FOSSILIZE, Op.ADVANCE):
        for slot, step in started.items():
            if slot < len(legal) and legal[slot, OP_INDEX[op]]:
                return step.row(op, slot, 0)
    return [OP_INDEX[Op.WAIT], 0, 0, 0, 0, 0, 0]


def compile_seed(seed: PlannedSeed) -> PlannedStep:
    """Head indices of a planned seed; a value that no head offers is a ConfigError."""
    chosen = (seed.alpha_target, seed.alpha_speed, seed.alpha_curve, seed.tempo)
    options: tuple[Sequence[Any], ...] = (ALPHA_TARGETS, ALPHA_SPEEDS, ALPHA_CURVES, TEMPOS)
    for value, known in zip(chosen, options, strict=True):
        if value not in known:
            raise ConfigError(f"plan wants {value}, which is none of {list(known)}")
    indices = [known.index(value) for value, known in zip(chosen, options, strict=True)]
    return PlannedStep(seed.epoch, seed.slot, seed.blueprint, *indices)


def make_schedule(request: Request) -> ScheduleController:
    """The plan of the spec, for every host."""
    if request.spec.plan is None:
        raise ConfigError("controller 'schedule' needs a plan")
    return ScheduleController("schedule", [request.spec.plan] * len(request.hosts))


def make_blind(request: Request) -> ScheduleController:
    """The best plan that looks at nothing, for every host."""
    name = one_set(request.hosts)
    plan = Plan() if name is None else load_plans(name).blind
    return ScheduleController("blind", [plan] * len(request.hosts))


def make_oracle(request: Request) -> ScheduleController:
    """The best plan of each host's family."""
    return ScheduleController("oracle", family_plans(request.hosts))
