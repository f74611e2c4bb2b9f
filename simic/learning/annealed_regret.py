"""Expected regret over tried alternatives, minus a temperature times the entropy; the temperature falls.

The loss is that of ``distillation``, whose alternatives are actions, and of ``karn``, whose alternatives are
blueprints.

Shapes: B decisions, C alternatives of one decision.
"""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from simic.learning.rates import LrSchedule

__all__ = ["REGRET_CUT", "UNIT", "RegretTerms", "rates_of", "regret_terms", "temperature_at"]

REGRET_CUT = 15.0
"""Regrets above this many points count as this many, so that single catastrophes do not dominate."""
UNIT = 5.0
"""Points of regret per unit of the loss."""
FIRST_TEMPERATURE, LAST_TEMPERATURE = 2.5, 0.05
"""Temperatures in points per nat, at the start and at the end."""
COOLING_SHARE = 0.8
"""Share of the updates over which the temperature falls linearly."""
RATE_SHARE = 0.5
"""Initial share of the peak learning rates."""
TRIED_WEIGHT = 0.02
"""Weight of the log-probability of choosing any tried alternative."""


class RegretTerms(NamedTuple):
    """Parts of the loss, [B] each; [] each after ``mean``."""

    expected: Tensor
    """Expected regret in points, each at most ``REGRET_CUT``."""
    entropy: Tensor
    """Entropy in nats among the tried alternatives."""
    log_tried: Tensor
    """Log-probability of any tried alternative."""

    def mean(self) -> RegretTerms:
        """Return the mean of each part over the decisions."""
        return RegretTerms(*(part.mean() for part in self))

    def loss(self, temperature: float) -> Tensor:
        """Return the loss at a ``temperature`` in points per nat."""
        return (self.expected - temperature * self.entropy) / UNIT - TRIED_WEIGHT * self.log_tried


def regret_terms(log_probs: Tensor, regret: Tensor) -> RegretTerms:
    """Return the parts of the loss from log-probabilities and regrets in points, float [B, C] each.

    The log-probability of an alternative that was not tried is ``IMPOSSIBLE``.
    """
    log_share = log_probs.log_softmax(1)
    share = log_share.exp()
    expected = (share * regret.clamp(max=REGRET_CUT)).sum(1)
    return RegretTerms(expected, -(share * log_share).sum(1), log_probs.logsumexp(1))


def temperature_at(position: int, updates: int) -> float:
    """Return the temperature in points per nat of the update at ``position``, counted from 0, of all ``updates``."""
    progress = min(1.0, position / max(1.0, COOLING_SHARE * updates))
    return FIRST_TEMPERATURE + progress * (LAST_TEMPERATURE - FIRST_TEMPERATURE)


def rates_of(updates: int) -> LrSchedule:
    """Return the schedule of the learning rates over all ``updates``."""
    return LrSchedule(min(20, updates // 4), updates, RATE_SHARE, 0.01 * RATE_SHARE)
