"""Paired estimates of one controller against another."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from simic.contracts.config import TrialConfig
from simic.contracts.receipts import Estimate
from simic.numerics.intervals import paired_bootstrap
from simic.runtime.seeds import derive

__all__ = ["paired_estimate"]


def paired_estimate(
    ours: ArrayLike, theirs: ArrayLike, config: TrialConfig, seed: int, families: Sequence[str] | None = None
) -> Estimate:
    """Mean of ``ours - theirs`` [n], paired by host, with its percentile-bootstrap interval.

    With ``families`` [n] every resample keeps the mix of families, as the draw of the hosts did.
    """
    differences = np.asarray(ours, dtype=np.float64) - np.asarray(theirs, dtype=np.float64)
    interval = paired_bootstrap(
        differences, config.confidence, config.bootstrap_samples, derive(seed, "bootstrap"), strata=families
    )
    return Estimate(
        mean=interval.mean,
        lower=interval.lower,
        upper=interval.upper,
        confidence=config.confidence,
        n=len(differences),
    )
