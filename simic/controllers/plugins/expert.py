"""``expert``: follows the best plan of the host's family from any state.

The oracle follows the same plan open-loop. The expert reads the lifecycle: it prunes seeds that the plan lacks,
germinates late while there is time, and continues from any state. It can therefore be mixed with exploration, which
shows how much of a perfect policy's return an exploring sampler retains.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simic.contracts.actions import ALPHA_SPEEDS, HEADS, Op
from simic.contracts.batches import OP_INDEX, Decisions, Masks, Observations
from simic.contracts.controllers import Plan
from simic.contracts.errors import ContractError
from simic.controllers.plans import family_plans
from simic.controllers.protocol import ControllerContext
from simic.controllers.sampling import deterministic
from simic.controllers.schedule_controller import PlannedStep, compile_seed

__all__ = ["NAME", "SUMMARY", "ExpertController", "make"]

NAME = "expert"
SUMMARY = "the oracle's plan, each step chosen from the current slots, so it can start in the middle of an episode"

_LIFE_EPOCHS = 5
"""Epochs from germination to fossilisation, without the ramp; a later seed could not be fossilised."""


class ExpertController:
    """Follows one plan per host from epoch, slots and masks."""

    name = NAME
    policy_version: str | None = None

    def __init__(self, plans: Sequence[Plan]) -> None:
        self._plans = [{seed.slot: compile_seed(seed) for seed in plan.seeds} for plan in plans]

    def decide(self, observations: Observations, masks: Masks, uniforms: NDArray[Any]) -> Decisions:  # noqa: ARG002
        """Return one legal action per host."""
        if len(observations) != len(self._plans):
            raise ContractError(f"{len(self._plans)} plans cannot steer {len(observations)} hosts")
        actions = np.zeros((len(observations), len(HEADS)), dtype=np.int16)
        vocabulary = {name: index for index, name in enumerate(observations.blueprints)}
        epochs, horizons = (observations.system[name].tolist() for name in ("epoch", "horizon"))
        for host, plan in enumerate(self._plans):
            own = slice(observations.slot_ptr[host], observations.slot_ptr[host + 1])
            due = {slot: step for slot, step in plan.items() if _is_due(step, epochs[host], horizons[host])}
            planned = {slot: step.index_in(vocabulary) for slot, step in plan.items()}
            blueprints = observations.slots["blueprint"][own].tolist()
            is_planned = np.array(
                [planned.get(slot) == blueprint for slot, blueprint in enumerate(blueprints)], dtype=bool
            )
            legal = _serving_slots(masks.slot[own], is_planned, due, planned, masks.blueprint[host])
            actions[host] = _first_action(legal, plan, planned)
        return deterministic(actions)


def _is_due(step: PlannedStep, epoch: int, horizon: int) -> bool:
    """Return whether the step's epoch has come and the seed can still be fossilised."""
    return step.epoch <= epoch <= horizon - _LIFE_EPOCHS - ALPHA_SPEEDS[step.speed]


def _serving_slots(
    legal: NDArray[np.bool_],
    is_planned: NDArray[np.bool_],
    due: Mapping[int, PlannedStep],
    planned: Mapping[int, int],
    blueprints: NDArray[np.bool_],
) -> dict[Op, NDArray[np.bool_]]:
    """Return the slots bool [slots] of one host that serve the plan, by operation, in order of preference.

    ``legal`` [slots, ops]; ``is_planned`` [slots]: the slot holds the planned seed; ``planned`` are blueprint
    indices by slot, ``blueprints`` [K] the legal ones.
    """
    can_begin = np.array([slot in due and bool(blueprints[planned[slot]]) for slot in range(len(legal))], dtype=bool)
    serves = {Op.PRUNE: ~is_planned, Op.GERMINATE: can_begin, Op.FOSSILIZE: is_planned, Op.ADVANCE: is_planned}
    return {op: legal[:, OP_INDEX[op]] & where for op, where in serves.items()}


def _first_action(
    reach: Mapping[Op, NDArray[np.bool_]], plan: Mapping[int, PlannedStep], planned: Mapping[int, int]
) -> list[int]:
    """Return the action [heads] of the first operation with a slot, or WAIT."""
    for op, where in reach.items():
        if where.any():
            slot = int(np.argmax(where))
            none = [0] * (len(HEADS) - 2)
            return [OP_INDEX[op], slot, *none] if op is Op.PRUNE else plan[slot].row(op, slot, planned[slot])
    return [OP_INDEX[Op.WAIT]] * len(HEADS)


def make(context: ControllerContext) -> ExpertController:
    """Return a controller with the best plan of each host's family."""
    return ExpertController(family_plans(context.hosts))
