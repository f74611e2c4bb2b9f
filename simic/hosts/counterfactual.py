"""What a seed is worth: accuracy with it minus accuracy without it, smoothed over epochs."""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from simic.hosts.lifecycle import Slots

__all__ = ["SMOOTHING", "fold_contributions"]

SMOOTHING: Final = 0.5
"""Weight of the newest measurement; one measurement has a standard error near one point."""


def fold_contributions(
    slots: Slots, accuracy: NDArray[np.float64], without: NDArray[np.float64], live: NDArray[np.bool_]
) -> None:
    """Fold a measurement into the running averages of live hosts.

    The average is bias-corrected: weights of the past sum to 1 from the first measurement on. Slots where
    ``without`` [N, S] is NaN keep what they have and it grows older; a slot never measured stays NaN.
    """
    measured = np.isfinite(without) & np.isfinite(accuracy)[:, None] & live[:, None]
    value = np.where(measured, accuracy[:, None] - without, 0.0)
    total, weight = slots["contribution_sum"], slots["contribution_weight"]
    total[measured] = ((1.0 - SMOOTHING) * total + SMOOTHING * value)[measured]
    weight[measured] = ((1.0 - SMOOTHING) * weight + SMOOTHING)[measured]
    slots["contribution"][measured] = total[measured] / weight[measured]
    slots["contribution_epochs"][~measured & (slots["contribution_epochs"] >= 0) & live[:, None]] += 1
    slots["contribution_epochs"][measured] = 0
