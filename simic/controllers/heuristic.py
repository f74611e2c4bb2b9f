"""The rules a careful engineer would write down: grow on a plateau, keep what helps, remove what hurts.

In order, per host: fossilise a held seed whose contribution is at least ``keep``; prune a held seed whose contribution
is below ``hurts``, or that has not earned its keep after ``patience`` epochs, and any blended seed while validation
accuracy falls by ``falls``; advance a seed that has trained; on a plateau (validation accuracy rose by less than
``plateau`` over ``window`` epochs) germinate between ``first_epoch`` and ``time_needed`` epochs before the end; else
wait. Which blueprint and slot comes next rotates with the epoch, so that every slot has its turn and no memory is
needed. The numbers are a ``HeuristicRules``: those of the plan book were searched on training hosts.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from simic.contracts.actions import ALPHA_CURVES, ALPHA_SPEEDS, ALPHA_TARGETS, HEADS, TEMPOS, AlphaCurve, Head, Op
from simic.contracts.batches import HEAD_INDEX, OP_INDEX, STAGE_INDEX, Decisions, Masks, Observations
from simic.contracts.controllers import HeuristicRules
from simic.contracts.errors import ConfigError
from simic.contracts.lifecycle import SeedStage
from simic.controllers.choice import certain
from simic.controllers.plans import load_plans, one_set
from simic.controllers.request import Request

__all__ = ["HeuristicController", "make"]

_FACTORS = {
    Head.ALPHA_TARGET: ALPHA_TARGETS.index(1.0),
    Head.ALPHA_CURVE: ALPHA_CURVES.index(AlphaCurve.LINEAR),
    Head.TEMPO: TEMPOS.index(3),
}


class HeuristicController:
    """Acts through the same masks and observations as everyone else, on every slot; never told the family."""

    name = "heuristic"
    policy_version: str | None = None

    def __init__(self, rules: HeuristicRules) -> None:
        self.rules = rules

    def decide(self, observations: Observations, masks: Masks, uniforms: NDArray[Any]) -> Decisions:  # noqa: ARG002
        """One legal action per host."""
        actions = np.zeros((len(observations), len(HEADS)), dtype=np.int16)
        for head, index in {**_FACTORS, Head.ALPHA_SPEED: ALPHA_SPEEDS.index(self.rules.alpha_speed)}.items():
            actions[:, HEAD_INDEX[head]] = index
        order = self._order(observations.blueprints)
        for host, gain in enumerate(self._gains(observations)):
            own = slice(observations.slot_ptr[host], observations.slot_ptr[host + 1])
            tended = self._tend(observations, own, masks.slot[own], gain)
            blueprints = [index for index in order if masks.blueprint[host, index]]
            actions[host, :3] = tended or self._plant(observations, host, masks.slot[own], blueprints, gain)
        return certain(actions)

    def _order(self, vocabulary: tuple[str, ...]) -> list[int]:
        """Indices of the blueprints in the order of their turns."""
        unknown = sorted(set(self.rules.blueprints) - set(vocabulary))
        if unknown:
            raise ConfigError(f"the heuristic's rules want blueprints {unknown}; known are {sorted(vocabulary)}")
        return [vocabulary.index(name) for name in self.rules.blueprints or vocabulary]

    def _gains(self, observations: Observations) -> list[float]:
        """Of each host, in validation accuracy over the window; NaN when it is too young, 0 over no epochs."""
        history = observations.history["validation_accuracy_history"]
        gains: list[float] = (history[:, -1] - history[:, -1 - self.rules.window]).tolist()
        return gains

    def _tend(
        self, observations: Observations, own: slice, legal: NDArray[np.bool_], gain: float
    ) -> tuple[int, int, int] | None:
        """Operation, slot and 0 for the seeds in the slots ``own`` of one host, ``legal`` [slots, ops]."""
        rules = self.rules
        contribution, stage = observations.slots["contribution"][own], observations.slots["stage"][own]
        is_held = stage == STAGE_INDEX[SeedStage.HOLDING]
        is_blended = is_held | (stage == STAGE_INDEX[SeedStage.BLENDING])
        is_overdue = observations.slots["stage_epochs"][own] > rules.patience
        wanted = (
            (Op.FOSSILIZE, contribution >= rules.keep),
            (Op.PRUNE, is_held & ((contribution < rules.hurts) | is_overdue)),
            (Op.PRUNE, is_blended & (gain <= -rules.falls)),
            (Op.ADVANCE, np.ones(len(legal), dtype=bool)),
        )
        for op, condition in wanted:
            slots = np.flatnonzero(legal[:, OP_INDEX[op]] & condition)
            if len(slots):
                return OP_INDEX[op], int(slots[0]), 0
        return None

    def _plant(
        self, observations: Observations, host: int, legal: NDArray[np.bool_], blueprints: list[int], gain: float
    ) -> tuple[int, int, int]:
        """Germination of one host that has nothing to tend, or WAIT."""
        rules = self.rules
        epoch, horizon = int(observations.system["epoch"][host]), int(observations.system["horizon"][host])
        is_time = rules.first_epoch <= epoch <= horizon - rules.time_needed
        slots = np.flatnonzero(legal[:, OP_INDEX[Op.GERMINATE]])
        if not (gain < rules.plateau and is_time and len(slots) and blueprints):
            return OP_INDEX[Op.WAIT], 0, 0
        waited = epoch - rules.first_epoch
        slot = slots[waited // rules.slot_epochs % len(slots)]
        blueprint = blueprints[waited // rules.blueprint_epochs % len(blueprints)]
        return OP_INDEX[Op.GERMINATE], int(slot), blueprint


def make(request: Request) -> HeuristicController:
    """With the rules of the spec, else those of the plan book of the hosts' set."""
    rules = request.spec.rules
    if rules is None:
        name = one_set(request.hosts)
        rules = HeuristicRules() if name is None else load_plans(name).heuristic.rules
    return HeuristicController(rules)
