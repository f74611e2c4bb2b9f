"""The behaviour behind the first log: random, but shaped so that whole lives of seeds are seen.

A uniformly random controller prunes what it planted before anything can be learned from it. This one looks before it
grows: it never germinates before a host has trained at all. Hosts look alike then; a policy that learned from such
germinations would choose one blueprint for all and see no reason to wait. Later it germinates mostly early, advances
and fossilises soon, prunes seldom and otherwise waits. It is Markov, every other legal choice keeps a positive
probability, and the probabilities are exact. Rates are per epoch, given that the operation is legal.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from simic.contracts.actions import OPS, Head, Op
from simic.contracts.batches import OP_INDEX, Decisions, Masks, Observations
from simic.controllers.choice import Tables, sample
from simic.controllers.request import Request

__all__ = ["ExploreController", "make", "operation_table"]

_FIRST_RATE = 0.0
"""Of germinating in epoch 0, before anything was seen."""
_GERMINATE_RATES = ((0.25, 0.3), (0.45, 0.1), (1.0, 0.01))
"""(share of the horizon up to which it holds, rate): over 20 epochs, one episode in seven stays without growth."""
_RATES = {Op.SET_ALPHA_TARGET: 0.02, Op.ADVANCE: 0.7, Op.FOSSILIZE: 0.7, Op.PRUNE: 0.01}
_MOST_ACTION = 0.95
"""Rates of several slots may add up; WAIT keeps at least the rest."""
_SHARES: dict[Head, tuple[float, ...]] = {
    Head.ALPHA_TARGET: (0.1, 0.1, 0.8),
    Head.ALPHA_SPEED: (0.45, 0.35, 0.13, 0.07),
    Head.ALPHA_CURVE: (0.5, 0.25, 0.25),
    Head.TEMPO: (1 / 3, 1 / 3, 1 / 3),
}


class ExploreController:
    """Gathers experience to learn from."""

    name = "explore"
    policy_version: str | None = None

    def decide(self, observations: Observations, masks: Masks, uniforms: NDArray[np.float64]) -> Decisions:
        """One legal action per host."""
        table = operation_table(observations, masks)
        return sample(Tables(table, masks, observations.slot_ptr, _SHARES), uniforms)


def operation_table(observations: Observations, masks: Masks) -> NDArray[np.float64]:
    """Probabilities [N, ops]."""
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


def make(_: Request) -> ExploreController:
    """Needs nothing."""
    return ExploreController()
