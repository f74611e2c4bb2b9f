"""Whether the loss rises from pass to pass, or never falls: a pure state over passes and losses."""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["LOSSES", "LossTrend", "is_stale", "step"]

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
    first: float | None = None
    """Mean loss of the first pass; None in it."""
    best: float | None = None
    """Least mean loss of the finished passes after the first one; None before there is one."""
    passes: int = 0
    """Finished passes after the first one."""


def step(trend: LossTrend, phase: str, recoveries: int, number: int, loss: float) -> LossTrend:
    """Return the trend after an update of pass ``number``."""
    place = (phase, recoveries, number)
    if place == trend.place:
        return trend._replace(total=trend.total + loss, updates=trend.updates + 1)
    if place[:2] != trend.place[:2]:
        return LossTrend(place, loss, 1)
    mean = trend.total / trend.updates
    rises = trend.rises + 1 if trend.before is not None and mean > trend.before else 0
    if trend.first is None:
        return LossTrend(place, loss, 1, mean, rises, first=mean)
    best = mean if trend.best is None else min(trend.best, mean)
    return LossTrend(place, loss, 1, mean, rises, trend.first, best, trend.passes + 1)


def is_stale(trend: LossTrend, passes: int, min_improvement: float) -> bool:
    """Return whether no pass of the phase, of at least ``passes`` after its first one, had a loss below the first's."""
    if trend.first is None or trend.best is None or trend.passes < passes:
        return False
    return trend.best > trend.first - min_improvement * abs(trend.first)
