"""``heuristic``: fixed rules, grow on a plateau, keep what helps, prune what hurts.

In order, per host: fossilise a held seed whose contribution is at least ``keep``; prune a held seed whose contribution
is below ``hurts``, or that is still held after ``patience`` epochs, and any blended seed while validation
accuracy falls by ``falls``; advance a seed that has trained; on a plateau (validation accuracy rose by less than
``plateau`` over ``window`` epochs) germinate between ``first_epoch`` and ``time_needed`` epochs before the end; else
wait. Blueprint and slot rotate with the epoch, so that every slot is tried and no state is
needed. The numbers are a ``HeuristicRules``; those of the plan book were searched on training hosts.
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
from simic.controllers.plans import load_plans, one_set
from simic.controllers.protocol import ControllerContext
from simic.controllers.sampling import deterministic

__all__ = ["NAME", "SUMMARY", "HeuristicController", "make"]

NAME = "heuristic"
SUMMARY = "fixed rules, grow on a plateau, keep what helps, prune what hurts"

_FACTORS = {
    Head.ALPHA_TARGET: ALPHA_TARGETS.index(1.0),
    Head.ALPHA_CURVE: ALPHA_CURVES.index(AlphaCurve.LINEAR),
    Head.TEMPO: TEMPOS.index(3),
}


class HeuristicController:
    """Follows ``HeuristicRules`` on every slot; it does not know the host's family."""

    name = NAME
    policy_version: str | None = None

    def __init__(self, rules: HeuristicRules) -> None:
        self.rules = rules

    def decide(self, observations: Observations, masks: Masks, uniforms: NDArray[Any]) -> Decisions:  # noqa: ARG002
        """Return one legal action per host."""
        actions = np.zeros((len(observations), len(HEADS)), dtype=np.int16)
        for head, index in {**_FACTORS, Head.ALPHA_SPEED: ALPHA_SPEEDS.index(self.rules.alpha_speed)}.items():
            actions[:, HEAD_INDEX[head]] = index
        order = self._order(observations.blueprints)
        for host, gain in enumerate(self._gains(observations)):
            own = slice(observations.slot_ptr[host], observations.slot_ptr[host + 1])
            tended = self._tend(observations, own, masks.slot[own], gain)
            blueprints = [index for index in order if masks.blueprint[host, index]]
            actions[host, :3] = tended or self._plant(observations, host, masks.slot[own], blueprints, gain)
        return deterministic(actions)

    def _order(self, vocabulary: tuple[str, ...]) -> list[int]:
        """Return blueprint indices in the order of the rotation."""
        unknown = sorted(set(self.rules.blueprints) - set(vocabulary))
        if unknown:
            raise ConfigError(
                f"the heuristic's rules name unknown blueprints {unknown}; "
                f"known blueprints: {', '.join(sorted(vocabulary))}"
            )
        return [vocabulary.index(name) for name in self.rules.blueprints or vocabulary]

    def _gains(self, observations: Observations) -> list[float]:
        """Return each host's gain in validation accuracy over the window; NaN in early epochs, 0 for a window of 0."""
        history = observations.history["validation_accuracy_history"]
        gains: list[float] = (history[:, -1] - history[:, -1 - self.rules.window]).tolist()
        return gains

    def _tend(
        self, observations: Observations, own: slice, legal: NDArray[np.bool_], gain: float
    ) -> tuple[int, int, int] | None:
        """Return (operation, slot, 0) for the seeds of one host, or None; ``legal`` is bool [slots, ops]."""
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
        """Return a germination for a host without other action, or WAIT."""
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


def make(context: ControllerContext) -> HeuristicController:
    """Return the controller with the rules of the spec, else those of the set's plan book."""
    rules = context.spec.rules
    if rules is None:
        name = one_set(context.hosts)
        rules = HeuristicRules() if name is None else load_plans(name).heuristic.rules
    return HeuristicController(rules)
