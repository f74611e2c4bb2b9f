"""A scripted expert: told the family, it brings the best plan of that family about, whatever came in between.

The oracle follows the same plan blindly. The expert looks at the lifecycle: it prunes what the plan does not know,
germinates late rather than never while there is time, and carries on from whatever state it finds. So it can be mixed
with exploration, and shows how much of a perfect policy's return an exploring sampler leaves.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simic.contracts.actions import ALPHA_SPEEDS, HEADS, Op
from simic.contracts.batches import OP_INDEX, Decisions, Masks, Observations
from simic.contracts.controllers import Plan
from simic.contracts.errors import ContractViolation
from simic.controllers.choice import certain
from simic.controllers.plans import family_plans
from simic.controllers.request import Request
from simic.controllers.schedule import PlannedStep, compile_seed

__all__ = ["ExpertController", "make"]

_LIFE_EPOCHS = 5
"""From germination to fossilisation, besides the ramp; later a seed could not be kept."""


class ExpertController:
    """One plan per host; looks at the epoch, at what sits in the slots, and at what is legal."""

    name = "expert"
    policy_version: str | None = None

    def __init__(self, plans: Sequence[Plan]) -> None:
        self._plans = [{seed.slot: compile_seed(seed) for seed in plan.seeds} for plan in plans]

    def decide(self, observations: Observations, masks: Masks, uniforms: NDArray[Any]) -> Decisions:  # noqa: ARG002
        """One legal action per host."""
        if len(observations) != len(self._plans):
            raise ContractViolation(f"{len(self._plans)} plans cannot steer {len(observations)} hosts")
        actions = np.zeros((len(observations), len(HEADS)), dtype=np.int16)
        vocabulary = {name: index for index, name in enumerate(observations.blueprints)}
        epochs, horizons = (observations.system[name].tolist() for name in ("epoch", "horizon"))
        for host, plan in enumerate(self._plans):
            own = slice(observations.slot_ptr[host], observations.slot_ptr[host + 1])
            due = {slot: step for slot, step in plan.items() if _is_due(step, epochs[host], horizons[host])}
            planned = {slot: step.index_in(vocabulary) for slot, step in plan.items()}
            blueprints = observations.slots["blueprint"][own].tolist()
            is_planned = np.array([planned.get(slot) == found for slot, found in enumerate(blueprints)], dtype=bool)
            legal = _in_reach(masks.slot[own], is_planned, due, planned, masks.blueprint[host])
            actions[host] = _first(legal, plan, planned)
        return certain(actions)


def _is_due(step: PlannedStep, epoch: int, horizon: int) -> bool:
    """Its epoch has come, and there is time left to keep the seed."""
    return step.epoch <= epoch <= horizon - _LIFE_EPOCHS - ALPHA_SPEEDS[step.speed]


def _in_reach(
    legal: NDArray[np.bool_],
    is_planned: NDArray[np.bool_],
    due: Mapping[int, PlannedStep],
    planned: Mapping[int, int],
    blueprints: NDArray[np.bool_],
) -> dict[Op, NDArray[np.bool_]]:
    """Slots [slots] of one host that serve the plan, by operation, in the order of preference.

    ``legal`` [slots, ops]; ``is_planned`` [slots]: the slot holds what the plan wants there; ``planned`` are blueprint
    indices by slot, ``blueprints`` [K] the legal ones.
    """
    can_begin = np.array([slot in due and bool(blueprints[planned[slot]]) for slot in range(len(legal))], dtype=bool)
    serves = {Op.PRUNE: ~is_planned, Op.GERMINATE: can_begin, Op.FOSSILIZE: is_planned, Op.ADVANCE: is_planned}
    return {op: legal[:, OP_INDEX[op]] & where for op, where in serves.items()}


def _first(
    reach: Mapping[Op, NDArray[np.bool_]], plan: Mapping[int, PlannedStep], planned: Mapping[int, int]
) -> list[int]:
    """The action [heads] of the first operation that has a slot, or WAIT."""
    for op, where in reach.items():
        if where.any():
            slot = int(np.argmax(where))
            none = [0] * (len(HEADS) - 2)
            return [OP_INDEX[op], slot, *none] if op is Op.PRUNE else plan[slot].row(op, slot, planned[slot])
    return [OP_INDEX[Op.WAIT]] * len(HEADS)


def make(request: Request) -> ExpertController:
    """The best plan of each host's family."""
    return ExpertController(family_plans(request.hosts))
