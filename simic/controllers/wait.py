"""Never grow: the control against which everything is measured."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from simic.contracts.actions import HEADS, Op
from simic.contracts.batches import OP_INDEX, Decisions, Masks, Observations
from simic.controllers.choice import certain
from simic.controllers.request import Request

__all__ = ["WaitController", "make"]


class WaitController:
    """WAIT, always."""

    name = "wait"
    policy_version: str | None = None

    def decide(self, observations: Observations, masks: Masks, uniforms: NDArray[Any]) -> Decisions:  # noqa: ARG002
        """One WAIT per host."""
        return certain(np.full((len(observations), len(HEADS)), OP_INDEX[Op.WAIT], dtype=np.int16))


def make(_: Request) -> WaitController:
    """Needs nothing."""
    return WaitController()
