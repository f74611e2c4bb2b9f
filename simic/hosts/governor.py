"""The governor: a pure decision, from the measurements of an epoch, whether to stop a host."""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from simic.contracts.field_report import GovernorEvent, GovernorKind
from simic.contracts.settings.lifecycle import GovernorConfig

__all__ = ["MITIGATION", "Evidence", "judge"]

MITIGATION: Final = (
    "rolled back to the last snapshot",
    "pruned live seeds",
    "cleared optimiser state",
    "ended the episode",
)


class Evidence(NamedTuple):
    """Measurements of N hosts, [N] each unless noted."""

    train_loss: NDArray[np.float64]
    validation_loss: NDArray[np.float64]
    is_finite: NDArray[np.bool_]
    """Whether all parameters and momenta are finite, live seeds included."""
    birth_loss: NDArray[np.float64]
    """Validation loss before the first epoch."""
    accuracy: NDArray[np.float64]
    """Accuracy on validation samples."""
    best_accuracy: NDArray[np.float64]
    """The largest validation accuracy so far."""
    largest_share: NDArray[np.float64]
    """Share of validation samples in the class predicted most often."""
    classes: int
    is_loss_judged: bool = True
    """Whether a large loss or a constant output is a failure."""


def judge(evidence: Evidence, bounds: GovernorConfig) -> list[GovernorEvent | None]:
    """Return one entry per host: an event if the host must be stopped, else None."""
    bound = bounds.divergence_factor * np.maximum(evidence.birth_loss, np.log(evidence.classes))
    finite = evidence.is_finite & np.isfinite(evidence.train_loss) & np.isfinite(evidence.validation_loss)
    judged = finite & evidence.is_loss_judged
    diverged = judged & (evidence.train_loss > bound)
    events: list[GovernorEvent | None] = [None] * len(finite)
    for row in np.flatnonzero(~finite).tolist():
        events[row] = GovernorEvent(kind=GovernorKind.NON_FINITE, message="a loss or a parameter is not finite")
    for row in np.flatnonzero(diverged).tolist():
        message = f"training loss {evidence.train_loss[row]:.3g} exceeds {bound[row]:.3g}"
        events[row] = GovernorEvent(kind=GovernorKind.DIVERGENCE, message=message)
    collapsed = judged & ~diverged & (evidence.largest_share >= bounds.collapsed_share)
    collapsed &= evidence.best_accuracy - evidence.accuracy >= bounds.lost_accuracy
    for row in np.flatnonzero(collapsed).tolist():
        lost = f"accuracy fell from {evidence.best_accuracy[row]:.3g} to {evidence.accuracy[row]:.3g}"
        events[row] = GovernorEvent(kind=GovernorKind.COLLAPSE, message=f"every sample gets one class, {lost}")
    return events
