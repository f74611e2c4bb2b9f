"""``complete``: germinates nothing, and fossilises every seed that it finds as soon as its gates allow.

The first teacher needs a controller that takes a germination, tried as a branch, to its end without a policy.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from simic.contracts.actions import ALPHA_CURVES, ALPHA_SPEEDS, ALPHA_TARGETS, HEADS, AlphaCurve, Head, Op
from simic.contracts.batches import HEAD_INDEX, OP_INDEX, Decisions, Masks, Observations
from simic.controllers.protocol import ControllerContext
from simic.controllers.sampling import deterministic, pad_slots

__all__ = ["NAME", "SUMMARY", "CompleteController", "make"]

NAME = "complete"
SUMMARY = "germinates no seed and fossilises (keeps) those already growing; ends an episode after a tried action"

_RAMP = {
    Head.ALPHA_TARGET: ALPHA_TARGETS.index(1.0),
    Head.ALPHA_SPEED: ALPHA_SPEEDS.index(0),
    Head.ALPHA_CURVE: ALPHA_CURVES.index(AlphaCurve.LINEAR),
}
"""Full alpha in one step."""


class CompleteController:
    """Fossilises, else advances, else waits; of several slots the first."""

    name = NAME
    policy_version: str | None = None

    def decide(self, observations: Observations, masks: Masks, uniforms: NDArray[Any]) -> Decisions:  # noqa: ARG002
        """Return one legal action per host."""
        actions = np.zeros((len(observations), len(HEADS)), dtype=np.int16)
        for head, choice in _RAMP.items():
            actions[:, HEAD_INDEX[head]] = choice
        legal = pad_slots(masks.slot, observations.slot_ptr)
        for op in (Op.ADVANCE, Op.FOSSILIZE):
            column = legal[:, :, OP_INDEX[op]]
            where = column.any(axis=1)
            actions[where, HEAD_INDEX[Head.OP]] = OP_INDEX[op]
            actions[where, HEAD_INDEX[Head.SLOT]] = column[where].argmax(axis=1)
        return deterministic(actions)


def make(_: ControllerContext) -> CompleteController:
    """Return the controller; spec and hosts are not used."""
    return CompleteController()
