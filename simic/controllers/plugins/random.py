"""``random``: uniform over legal operations, then over the legal choices of every factor."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from simic.contracts.actions import ALPHA_CURVES, ALPHA_SPEEDS, ALPHA_TARGETS, TEMPOS, Head
from simic.contracts.batches import Decisions, Masks, Observations
from simic.controllers.protocol import ControllerContext
from simic.controllers.sampling import Tables, sample, uniform_over

__all__ = ["NAME", "SUMMARY", "RandomController", "make"]

NAME = "random"
SUMMARY = "uniform over legal actions"

_SIZES = {
    Head.ALPHA_TARGET: len(ALPHA_TARGETS),
    Head.ALPHA_SPEED: len(ALPHA_SPEEDS),
    Head.ALPHA_CURVE: len(ALPHA_CURVES),
    Head.TEMPO: len(TEMPOS),
}
_UNIFORM = {head: (1.0 / size,) * size for head, size in _SIZES.items()}


class RandomController:
    """The uniform baseline, with exact log-probabilities."""

    name = NAME
    policy_version: str | None = None

    def decide(self, observations: Observations, masks: Masks, uniforms: NDArray[np.float64]) -> Decisions:
        """Return one legal action per host."""
        return sample(Tables(uniform_over(masks.op), masks, observations.slot_ptr, _UNIFORM), uniforms)


def make(_: ControllerContext) -> RandomController:
    """Return the controller; spec and hosts are not used."""
    return RandomController()
