"""Bootstrap intervals for paired mean differences (Efron and Tibshirani 1993, chapters 13 and 14).

The unit is a pair: one host under two controllers. Pairs are resampled as a whole, steps of an episode never.
"""

from __future__ import annotations

from statistics import NormalDist
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

__all__ = ["Interval", "paired_bootstrap"]

_BLOCK_ELEMENTS = 1 << 20
"""Largest number of drawn indices in memory: 8 MiB."""


class Interval(NamedTuple):
    """A mean and the bounds around it."""

    mean: float
    lower: float
    upper: float


def paired_bootstrap(
    differences: ArrayLike,
    confidence: float = 0.95,
    samples: int = 10_000,
    seed: int = 0,
    *,
    strata: ArrayLike | None = None,
    method: Literal["percentile", "bca"] = "percentile",
) -> Interval:
    """Return an interval of the mean of ``differences`` [n], n >= 2, one entry per pair.

    If given, ``strata`` [n] are resampled label by label, so that every resample keeps the mix of families.
    ``percentile`` uses the quantiles of the resampled means; ``bca`` corrects them for bias and skew.

    Equal arguments give equal bits: all randomness comes from ``seed``.
    """
    values = np.asarray(differences, dtype=np.float64)
    if values.ndim != 1 or len(values) < 2:
        raise ValueError(f"differences: expected [n] with n >= 2, found shape {values.shape}")
    if not np.isfinite(values).all():
        raise ValueError("differences must be finite: leave out pairs of which one side is missing")
    if not 0.0 < confidence < 1.0 or samples < 1:
        raise ValueError(f"confidence {confidence} must lie in (0, 1) and samples {samples} be positive")
    groups = _groups(len(values), strata)
    means = _resampled_means(values, groups, samples, np.random.default_rng(seed))
    tail = (1.0 - confidence) / 2.0
    tails = (tail, 1.0 - tail) if method == "percentile" else _bca_tails(values, groups, means, tail)
    lower, upper = np.quantile(means, tails)
    return Interval(float(values.mean()), float(lower), float(upper))


def _groups(n: int, strata: ArrayLike | None) -> list[NDArray[np.int64]]:
    """Return the positions of each stratum, in the order of the sorted labels."""
    if strata is None:
        return [np.arange(n)]
    labels = np.asarray(strata)
    if labels.shape != (n,):
        raise ValueError(f"strata: expected [{n}], found shape {labels.shape}")
    return [np.flatnonzero(labels == label) for label in np.unique(labels)]


def _resampled_means(
    values: NDArray[np.float64], groups: list[NDArray[np.int64]], samples: int, generator: np.random.Generator
) -> NDArray[np.float64]:
    sums = np.zeros(samples)
    for group in groups:
        pool = values[group]
        block = max(1, _BLOCK_ELEMENTS // len(pool))
        for start in range(0, samples, block):
            rows = min(block, samples - start)
            sums[start : start + rows] += pool[generator.integers(0, len(pool), size=(rows, len(pool)))].sum(axis=1)
    return sums / len(values)


def _bca_tails(
    values: NDArray[np.float64], groups: list[NDArray[np.int64]], means: NDArray[np.float64], tail: float
) -> tuple[float, float]:
    """Return bias-corrected quantile levels; without spread they are the uncorrected ones."""
    residuals = np.concatenate([values[group] - values[group].mean() for group in groups])
    squares = float((residuals**2).sum())
    if squares == 0.0:
        return tail, 1.0 - tail
    normal = NormalDist()
    acceleration = float((residuals**3).sum()) / (6.0 * squares**1.5)
    # Ties count half, and neither end may be exactly 0 or 1, whose normal quantile is infinite.
    mean = values.mean()
    below = ((means < mean).sum() + 0.5 * (means == mean).sum()) / len(means)
    bias = normal.inv_cdf(float(np.clip(below, 0.5 / len(means), 1.0 - 0.5 / len(means))))

    def level(share: float) -> float:
        z = bias + normal.inv_cdf(share)
        return normal.cdf(bias + z / (1.0 - acceleration * z))

    return level(tail), level(1.0 - tail)
