"""Controller that follows open-loop plans: germinate at a given epoch, advance and fossilise once legal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from simic.contracts.actions import ALPHA_CURVES, ALPHA_SPEEDS, ALPHA_TARGETS, HEADS, TEMPOS, Op
from simic.contracts.batches import OP_INDEX, Decisions, Masks, Observations
from simic.contracts.controllers import Plan, PlannedSeed
from simic.contracts.errors import ConfigError, ContractError
from simic.controllers.sampling import deterministic

__all__ = ["PlannedStep", "ScheduleController", "compile_seed"]


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
        """Return the blueprint's index in a vocabulary; raise ConfigError if it is unknown."""
        if self.blueprint not in vocabulary:
            raise ConfigError(
                f"plan names unknown blueprint {self.blueprint!r}; known blueprints: {', '.join(sorted(vocabulary))}"
            )
        return vocabulary[self.blueprint]

    def row(self, op: Op, slot: int, blueprint: int) -> list[int]:
        """Return an action [heads]; irrelevant heads are removed later."""
        return [OP_INDEX[op], slot, blueprint, self.target, self.speed, self.curve, self.tempo]


class ScheduleController:
    """Follows one plan per host from epoch and masks alone."""

    policy_version: str | None = None

    def __init__(self, name: str, plans: Sequence[Plan]) -> None:
        self.name = name
        self._plans = [[compile_seed(seed) for seed in plan.seeds] for plan in plans]

    def decide(self, observations: Observations, masks: Masks, uniforms: NDArray[Any]) -> Decisions:  # noqa: ARG002
        """Return one legal action per host."""
        if len(observations) != len(self._plans):
            raise ContractError(f"{len(self._plans)} plans cannot steer {len(observations)} hosts")
        actions = np.zeros((len(observations), len(HEADS)), dtype=np.int16)
        vocabulary = {name: index for index, name in enumerate(observations.blueprints)}
        epochs = observations.system["epoch"].tolist()
        for host, plan in enumerate(self._plans):
            own = slice(observations.slot_ptr[host], observations.slot_ptr[host + 1])
            actions[host] = _next(plan, epochs[host], masks.slot[own], masks.blueprint[host], vocabulary)
        return deterministic(actions)


def _next(
    plan: Sequence[PlannedStep],
    epoch: int,
    legal: NDArray[np.bool_],
    blueprints: NDArray[np.bool_],
    vocabulary: Mapping[str, int],
) -> list[int]:
    """Return the action [heads] of one host; ``legal`` bool [slots, ops], ``blueprints`` bool [K]."""
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
    """Return a planned seed as head indices; raise ConfigError for a value that no head has."""
    chosen = (seed.alpha_target, seed.alpha_speed, seed.alpha_curve, seed.tempo)
    options: tuple[Sequence[Any], ...] = (ALPHA_TARGETS, ALPHA_SPEEDS, ALPHA_CURVES, TEMPOS)
    for value, known in zip(chosen, options, strict=True):
        if value not in known:
            raise ConfigError(f"plan has value {value}; expected one of {list(known)}")
    indices = [known.index(value) for value, known in zip(chosen, options, strict=True)]
    return PlannedStep(seed.epoch, seed.slot, seed.blueprint, *indices)
