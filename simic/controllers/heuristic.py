"""The rules a careful engineer would write down: grow on a plateau, keep what helps, remove what hurts.

In order, per host: fossilise a held seed whose contribution is at least ``KEEP``; prune a held seed whose
contribution is below ``HURTS``; advance a seed that has trained; on a plateau (validation accuracy rose by less than
``PLATEAU`` over ``WINDOW`` epochs) germinate while at least ``TIME_NEEDED`` epochs remain; else wait. Which blueprint
and slot comes next rotates with the epoch, so that every slot and every blueprint has its turn and no memory is needed.
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

__all__ = ["HURTS", "KEEP", "PLATEAU", "TIME_NEEDED", "WINDOW", "HeuristicController", "make"]

KEEP = 0.01
"""Contribution, share of validation samples, from which a held seed is kept."""
HURTS = -0.02
"""Contribution below which a held seed is removed."""
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
        plateau = _has_plateau(observations)
        for host in range(len(observations)):
            actions[host, :3] = _choose(observations, masks, host, bool(plateau[host]))
        return certain(actions)


def _has_plateau(observations: Observations) -> NDArray[np.bool_]:
    """[N]"""
    history = observations.history["validation_accuracy_history"]
    gain = history[:, -1] - history[:, -1 - WINDOW]
    plateau: NDArray[np.bool_] = np.isfinite(gain) & (gain < PLATEAU)
    return plateau


def _choose(observations: Observations, masks: Masks, host: int, is_plateau: bool) -> tuple[int, int, int]:
    """Operation, slot and blueprint index of one host."""
    own = slice(observations.slot_ptr[host], observations.slot_ptr[host + 1])
    legal = masks.slot[own]
    contribution = observations.slots["contribution"][own]
    is_held = observations.slots["stage"][own] == STAGE_INDEX[SeedStage.HOLDING]
    wanted = (
        (Op.FOSSILIZE, contribution >= KEEP),
        (Op.PRUNE, is_held & (contribution < HURTS)),
        (Op.ADVANCE, np.ones(len(legal), dtype=bool)),
    )
    for op, condition in wanted:
        slots = np.flatnonzero(legal[:, OP_INDEX[op]] & condition)
        if len(slots):
            return OP_INDEX[op], int(slots[0]), 0
    epoch, horizon = int(observations.system["epoch"][host]), int(observations.system["horizon"][host])
    slots = np.flatnonzero(legal[:, OP_INDEX[Op.GERMINATE]])
    blueprints = np.flatnonzero(masks.blueprint[host])
    if is_plateau and len(slots) and len(blueprints) and horizon - epoch >= TIME_NEEDED:
        slot = slots[epoch % len(slots)]
        blueprint = blueprints[epoch // len(slots) % len(blueprints)]
        return OP_INDEX[Op.GERMINATE], int(slot), int(blueprint)
    return OP_INDEX[Op.WAIT], 0, 0


def make(_: Request) -> HeuristicController:
    """Needs nothing."""
    return HeuristicController()
