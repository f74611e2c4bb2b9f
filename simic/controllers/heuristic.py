"""The rules a careful engineer would write down: grow on a plateau, keep what helps, remove what hurts.

In order, per host: fossilise a held seed whose contribution is at least ``KEEP``; prune a held seed whose
contribution is below ``HURTS``, or that has not earned its keep after ``PATIENCE`` epochs, and any blended seed while
validation accuracy falls by ``FALLS``; advance a seed that has trained; on a plateau (validation accuracy rose by less
than ``PLATEAU`` over ``WINDOW`` epochs) germinate while at least ``TIME_NEEDED`` epochs remain; else wait. Which
blueprint and slot comes next rotates with the epoch, so that every slot and every blueprint has its turn and no memory
is needed.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from simic.contracts.actions import ALPHA_CURVES, ALPHA_SPEEDS, ALPHA_TARGETS, HEADS, TEMPOS, AlphaCurve, Head, Op
from simic.contracts.batches import HEAD_INDEX, OP_INDEX, STAGE_INDEX, Decisions, Masks, Observations
from simic.contracts.lifecycle import SeedStage
from simic.controllers.choice import certain
from simic.controllers.request import Request

__all__ = [
    "FALLS",
    "HURTS",
    "KEEP",
    "PATIENCE",
    "PLATEAU",
    "TIME_NEEDED",
    "WINDOW",
    "HeuristicController",
    "make",
]

KEEP = 0.01
"""Contribution, share of validation samples, from which a held seed is kept."""
HURTS = -0.02
"""Contribution below which a held seed is removed."""
PATIENCE = 3
"""Epochs a held seed has to reach ``KEEP``."""
FALLS = 0.05
"""Loss of validation accuracy over the window that a blended seed is blamed for."""
PLATEAU = 0.02
"""Gain in validation accuracy over the window that still counts as none."""
WINDOW = 2
"""Epochs; a shorter history is no plateau."""
TIME_NEEDED = 8
"""Epochs a seed needs to train, blend and prove itself."""

_FACTORS = {
    Head.ALPHA_TARGET: ALPHA_TARGETS.index(1.0),
    Head.ALPHA_SPEED: ALPHA_SPEEDS.index(3),
    Head.ALPHA_CURVE: ALPHA_CURVES.index(AlphaCurve.LINEAR),
    Head.TEMPO: TEMPOS.index(3),
}


class HeuristicController:
    """Acts through the same masks and observations as everyone else, on every slot."""

    name = "heuristic"
    policy_version: str | None = None

    def decide(self, observations: Observations, masks: Masks, uniforms: NDArray[Any]) -> Decisions:  # noqa: ARG002
        """One legal action per host."""
        actions = np.zeros((len(observations), len(HEADS)), dtype=np.int16)
        for head, index in _FACTORS.items():
            actions[:, HEAD_INDEX[head]] = index
        history = observations.history["validation_accuracy_history"]
        gains = (history[:, -1] - history[:, -1 - WINDOW]).tolist()
        for host, gain in enumerate(gains):
            actions[host, :3] = _choose(observations, masks, host, gain)
        return certain(actions)


def _choose(observations: Observations, masks: Masks, host: int, gain: float) -> tuple[int, int, int]:
    """Operation, slot and blueprint index of one host; ``gain`` in validation accuracy is NaN when it is too young."""
    own = slice(observations.slot_ptr[host], observations.slot_ptr[host + 1])
    legal = masks.slot[own]
    contribution, stage = observations.slots["contribution"][own], observations.slots["stage"][own]
    is_held = stage == STAGE_INDEX[SeedStage.HOLDING]
    is_blended = is_held | (stage == STAGE_INDEX[SeedStage.BLENDING])
    is_overdue = observations.slots["stage_epochs"][own] > PATIENCE
    wanted = (
        (Op.FOSSILIZE, contribution >= KEEP),
        (Op.PRUNE, is_held & ((contribution < HURTS) | is_overdue)),
        (Op.PRUNE, is_blended & (gain <= -FALLS)),
        (Op.ADVANCE, np.ones(len(legal), dtype=bool)),
    )
    for op, condition in wanted:
        slots = np.flatnonzero(legal[:, OP_INDEX[op]] & condition)
        if len(slots):
            return OP_INDEX[op], int(slots[0]), 0
    epoch, horizon = int(observations.system["epoch"][host]), int(observations.system["horizon"][host])
    slots = np.flatnonzero(legal[:, OP_INDEX[Op.GERMINATE]])
    blueprints = np.flatnonzero(masks.blueprint[host])
    if gain < PLATEAU and len(slots) and len(blueprints) and horizon - epoch >= TIME_NEEDED:
        slot = slots[epoch % len(slots)]
        blueprint = blueprints[epoch // len(slots) % len(blueprints)]
        return OP_INDEX[Op.GERMINATE], int(slot), int(blueprint)
    return OP_INDEX[Op.WAIT], 0, 0


def make(_: Request) -> HeuristicController:
    """Needs nothing."""
    return HeuristicController()
