"""``wait``: never grow, the reference of every return."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from simic.contracts.actions import HEADS, Op
from simic.contracts.batches import OP_INDEX, Decisions, Masks, Observations
from simic.controllers.protocol import ControllerContext
from simic.controllers.sampling import deterministic

__all__ = ["NAME", "SUMMARY", "WaitController", "make"]

NAME = "wait"
SUMMARY = "never grows, the baseline that returns are compared with"


class WaitController:
    """Chooses WAIT in every epoch."""

    name = NAME
    policy_version: str | None = None

    def decide(self, observations: Observations, masks: Masks, uniforms: NDArray[Any]) -> Decisions:  # noqa: ARG002
        """Return WAIT for every host."""
        return deterministic(np.full((len(observations), len(HEADS)), OP_INDEX[Op.WAIT], dtype=np.int16))


def make(_: ControllerContext) -> WaitController:
    """Return the controller; spec and hosts are not used."""
    return WaitController()
