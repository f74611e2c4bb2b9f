"""Bootstrap intervals for paired mean differences (Efron and Tibshirani 1993, chapters 13 and 14).

The unit is a pair: one host under two controllers. Pairs are resampled as a whole, steps of an episode never.

Several trainings on the same hosts form a table, training seeds x hosts. Its rows and its columns are drawn
independently of each other (Owen 2007, The pigeonhole bootstrap, Annals of Applied Statistics 1(2); McCullagh 2000,
Resampling and exchangeable arrays, Bernoulli 6(2)).
"""

from __future__ import annotations

from statistics import NormalDist
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

__all__ = ["Interval", "crossed_bootstrap", "crossed_ratio", "paired_bootstrap"]

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
    _check(values, confidence, samples)
    groups = _groups(len(values), strata)
    means = _resampled_means(values, groups, samples, np.random.default_rng(seed))
    tail = (1.0 - confidence) / 2.0
    tails = (tail, 1.0 - tail) if method == "percentile" else _bca_tails(values, groups, means, tail)
    lower, upper = np.quantile(means, tails)
    return Interval(float(values.mean()), float(lower), float(upper))


def crossed_bootstrap(
    differences: ArrayLike,
    confidence: float = 0.95,
    samples: int = 10_000,
    seed: int = 0,
    *,
    strata: ArrayLike | None = None,
) -> Interval:
    """Return a percentile interval of the mean of ``differences`` [S, N]: S training seeds, N >= 2 hosts they share.

    Each resample draws N hosts, for all seeds the same ones, and S seeds, both with replacement; ``strata`` [N] as in
    ``paired_bootstrap``. With row effects a, column effects b and residuals r of the table, the resampled means have
    the variance sum(a^2)/S^2 + sum(b^2)/N^2 + sum(r^2)/(S N)^2. For many hosts it expects the variance between seeds
    times (S - 1)/S and three times the residual one (Owen 2007): seeds count a little too little if they
    are few, chance within a cell too much. One seed has no spread: the interval is that of ``paired_bootstrap``.
    """
    values = _table(differences, confidence, samples)
    means = _crossed_means(values, None, strata, samples, seed)[0]
    tail = (1.0 - confidence) / 2.0
    lower, upper = np.quantile(means, (tail, 1.0 - tail))
    return Interval(float(values.mean()), float(lower), float(upper))


def crossed_ratio(
    numerators: ArrayLike,
    denominators: ArrayLike,
    confidence: float = 0.95,
    samples: int = 10_000,
    seed: int = 0,
    *,
    strata: ArrayLike | None = None,
) -> Interval | None:
    """Return a percentile interval of mean(numerators [S, N]) / mean(denominators [N]) over seeds and hosts.

    Resamples are those of ``crossed_bootstrap``; both means of a resample are over the same hosts. None if a resampled
    denominator is not positive, because no share of it is defined then.
    """
    values = _table(numerators, confidence, samples)
    below = np.asarray(denominators, dtype=np.float64)
    if below.shape != values.shape[1:] or not np.isfinite(below).all():
        raise ValueError(f"denominators: expected [{values.shape[1]}] and finite, found shape {below.shape}")
    means, below_means = _crossed_means(values, below, strata, samples, seed)
    if below.mean() <= 0.0 or below_means.min() <= 0.0:
        return None
    tail = (1.0 - confidence) / 2.0
    lower, upper = np.quantile(means / below_means, (tail, 1.0 - tail))
    return Interval(float(values.mean() / below.mean()), float(lower), float(upper))


def _table(differences: ArrayLike, confidence: float, samples: int) -> NDArray[np.float64]:
    values = np.asarray(differences, dtype=np.float64)
    if values.ndim != 2 or values.shape[0] < 1 or values.shape[1] < 2:
        raise ValueError(f"differences: expected [S, N] with S >= 1 and N >= 2, found shape {values.shape}")
    _check(values, confidence, samples)
    return values


def _crossed_means(
    values: NDArray[np.float64], below: NDArray[np.float64] | None, strata: ArrayLike | None, samples: int, seed: int
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return resampled means [samples] of a table [S, N], and those of ``below`` [N] on the same hosts (or zeros)."""
    seeds, hosts = values.shape
    generator = np.random.default_rng(seed)
    columns = np.column_stack([values.T, np.zeros(hosts) if below is None else below])
    by_seed = _resampled_means(columns, _groups(hosts, strata), samples, generator)
    chosen = generator.integers(0, seeds, size=(samples, seeds))
    return np.take_along_axis(by_seed[:, :seeds], chosen, axis=1).mean(axis=1), by_seed[:, seeds]


def _check(values: NDArray[np.float64], confidence: float, samples: int) -> None:
    if not np.isfinite(values).all():
        raise ValueError("differences must be finite: leave out pairs of which one side is missing")
    if not 0.0 < confidence < 1.0 or samples < 1:
        raise ValueError(f"confidence {confidence} must lie in (0, 1) and samples {samples} be positive")


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
    """Return means of resampled entries of ``values`` [n, ...], shape [samples, ...]."""
    sums = np.zeros((samples, *values.shape[1:]))
    for group in groups:
        pool = values[group]
        block = max(1, _BLOCK_ELEMENTS // pool.size)
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
