"""Whether the loss rises from pass to pass: a pure state over passes and losses."""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["LOSSES", "LossTrend", "step"]

LOSSES = {
    "cloning": "cloning_loss",
    "value_fit": "value_fit_loss",
    "distillation": "value_loss",
    "q_fit": "q_loss",
    "vtrace": "value_loss",
    "ppo": "value_loss",
    "awr": "value_loss",
    "imitation": "policy_loss",
}
"""The loss of a phase that falls as long as it learns. The loss of a policy gradient is no such number, and the
temperature of a distillation raises its total."""


class LossTrend(NamedTuple):
    """Losses of the passes of one phase so far."""

    place: tuple[str, int, int] = ("", 0, 0)
    """Phase, recoveries of the training, and pass; a trend is of one phase between two recoveries."""
    total: float = 0.0
    """Sum of the losses of this pass."""
    updates: int = 0
    """Updates of this pass."""
    before: float | None = None
    """Mean loss of the pass before; None in the first."""
    rises: int = 0
    """Passes in a row, this one not included, each with a higher mean loss than the one before."""


def step(trend: LossTrend, phase: str, recoveries: int, number: int, loss: float) -> LossTrend:
    """Return the trend after an update of pass ``number``."""
    place = (phase, recoveries, number)
    if place == trend.place:
        return trend._replace(total=trend.total + loss, updates=trend.updates + 1)
    if place[:2] != trend.place[:2]:
        return LossTrend(place, loss, 1)
    mean = trend.total / trend.updates
    rises = trend.rises + 1 if trend.before is not None and mean > trend.before else 0
    return LossTrend(place, loss, 1, mean, rises)
