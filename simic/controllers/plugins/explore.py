"""``explore``: random, with rates that make whole seed lifecycles likely; collects the first experience.

A uniformly random controller prunes most seeds before anything can be learned from them. This one never germinates
before a host has trained an epoch: hosts look alike then, and a policy trained on such germinations would choose one
blueprint for all. Later it germinates mostly early, advances and fossilises soon, prunes rarely and otherwise waits.
It is Markov, every other legal choice has a positive probability, and all probabilities are exact. Rates are per
epoch, given that the operation is legal.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from simic.contracts.actions import OPS, Head, Op
from simic.contracts.batches import OP_INDEX, Decisions, Masks, Observations
from simic.controllers.protocol import ControllerContext
from simic.controllers.sampling import Tables, sample

__all__ = ["NAME", "SUMMARY", "ExploreController", "make", "operation_table"]

NAME = "explore"
SUMMARY = "random, with rates that make complete seed lifecycles likely; collects the first reports"

_FIRST_RATE = 0.0
"""Rate of GERMINATE in epoch 0, before any training."""
_GERMINATE_RATES = ((0.25, 0.3), (0.45, 0.1), (1.0, 0.01))
"""(end of the interval as a share of the horizon, rate); over 20 epochs one episode in seven has no growth."""
_RATES = {Op.SET_ALPHA_TARGET: 0.02, Op.ADVANCE: 0.7, Op.FOSSILIZE: 0.7, Op.PRUNE: 0.01}
_MOST_ACTION = 0.95
"""Largest sum of all rates; WAIT has at least the rest."""
_SHARES: dict[Head, tuple[float, ...]] = {
    Head.ALPHA_TARGET: (0.1, 0.1, 0.8),
    Head.ALPHA_SPEED: (0.45, 0.35, 0.13, 0.07),
    Head.ALPHA_CURVE: (0.5, 0.25, 0.25),
    Head.TEMPO: (1 / 3, 1 / 3, 1 / 3),
}


class ExploreController:
    """Collects experience for training."""

    name = NAME
    policy_version: str | None = None

    def decide(self, observations: Observations, masks: Masks, uniforms: NDArray[np.float64]) -> Decisions:
        """Return one legal action per host."""
        table = operation_table(observations, masks)
        return sample(Tables(table, masks, observations.slot_ptr, _SHARES), uniforms)


def operation_table(observations: Observations, masks: Masks) -> NDArray[np.float64]:
    """Return the operation probabilities [N, ops]."""
    epoch = observations.system["epoch"]
    elapsed = epoch / observations.system["horizon"]
    bands = [epoch == 0, *(elapsed < end for end, _ in _GERMINATE_RATES)]
    rates = np.zeros((len(observations), len(OPS)))
    rates[:, OP_INDEX[Op.GERMINATE]] = np.select(bands, [_FIRST_RATE, *(rate for _, rate in _GERMINATE_RATES)], 0.01)
    for op, rate in _RATES.items():
        rates[:, OP_INDEX[op]] = rate
    rates *= masks.op
    rates *= np.minimum(1.0, _MOST_ACTION / np.maximum(rates.sum(axis=1, keepdims=True), _MOST_ACTION))
    rates[:, OP_INDEX[Op.WAIT]] = 1.0 - rates.sum(axis=1)
    return rates


def make(_: ControllerContext) -> ExploreController:
    """Return the controller; spec and hosts are not used."""
    return ExploreController()
