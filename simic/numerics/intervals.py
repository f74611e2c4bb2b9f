"""Intervals of means: bootstrap (Efron and Tibshirani 1993, chapters 13 and 14), Student, and bounds for any values.

The unit of a bootstrap is a pair: one host under two controllers. Pairs are resampled as a whole, steps of an episode
never.

Several trainings on the same hosts form a table, training seeds x hosts. The bootstrap draws its rows and its columns
independently of each other (Owen 2007, The pigeonhole bootstrap, Annals of Applied Statistics 1(2); McCullagh 2000,
Resampling and exchangeable arrays, Bernoulli 6(2)). For few seeds there is a Student interval of the table.
"""

from __future__ import annotations

from functools import lru_cache
from math import cos, floor, lgamma, log, log1p, pi, sin, sqrt
from statistics import NormalDist
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

__all__ = [
    "BLOCK_ELEMENTS",
    "Interval",
    "binomial_interval",
    "crossed_ratio",
    "crossed_student",
    "empirical_bernstein",
    "groups_of",
    "hoeffding",
    "paired_bootstrap",
    "student_interval",
    "student_quantile",
]

BLOCK_ELEMENTS = 1 << 20
"""Largest number of drawn indices in memory: 8 MiB."""
_ROUNDING = 1e-9
"""Added to degrees of freedom, so that rounding does not take a whole one away."""


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

    If given, ``strata`` [n] are resampled label by label, so that every resample keeps the mix of families; if a label
    has one entry, all entries are resampled together.
    ``percentile`` uses the quantiles of the resampled means; ``bca`` corrects them for bias and skew.

    Equal arguments give equal bits: all randomness comes from ``seed``.
    """
    values = np.asarray(differences, dtype=np.float64)
    if values.ndim != 1 or len(values) < 2:
        raise ValueError(f"differences: expected [n] with n >= 2, found shape {values.shape}")
    _check(values, confidence, samples)
    groups = groups_of(len(values), strata)
    means = _resampled_means(values, groups, samples, np.random.default_rng(seed))
    tail = (1.0 - confidence) / 2.0
    tails = (tail, 1.0 - tail) if method == "percentile" else _bca_tails(values, groups, means, tail)
    lower, upper = np.quantile(means, tails)
    return Interval(float(values.mean()), float(lower), float(upper))


def crossed_student(differences: ArrayLike, confidence: float = 0.95, *, strata: ArrayLike | None = None) -> Interval:
    """Return a Student interval of the mean of ``differences`` [S, N]: S training seeds, N >= 2 hosts they share.

    Half of its width is sqrt(t(S - 1)^2 a^2 / S + t(f)^2 v), with the quantiles t of Student's distribution, the sample
    variance a^2 of the means of the seeds, and the variance v of the mean over hosts, from the means of the hosts
    within their ``strata`` [N]. It has Satterthwaite's degrees of freedom f, rounded down (1946, Biometrics Bulletin
    2(6)), so a family may vary more than others. The interval covers the mean with about ``confidence`` or more for
    normal effects of seeds, hosts and cells, whatever their shares (Banerjee 1960, Sankhya 22). One seed has no spread:
    the interval is over hosts alone.
    """
    values = _table(differences, confidence, 1)
    seeds, level, rows = len(values), 0.5 + confidence / 2.0, values.mean(axis=1)
    variance, freedom = _variance_within(values.mean(axis=0), strata)
    square = student_quantile(level, freedom) ** 2 * variance
    if seeds > 1:
        square += student_quantile(level, seeds - 1) ** 2 * float(rows.var(ddof=1)) / seeds
    mean = float(values.mean())
    return Interval(mean, mean - sqrt(square), mean + sqrt(square))


def _variance_within(columns: NDArray[np.float64], strata: ArrayLike | None) -> tuple[float, int]:
    """Return the variance of the mean of ``columns`` [N] within ``strata`` [N], and its degrees of freedom."""
    groups, total = groups_of(len(columns), strata), len(columns) ** 2
    parts = [(len(own) * float(columns[own].var(ddof=1)) / total, len(own) - 1) for own in groups]
    variance, squares = sum(part for part, _ in parts), sum(part**2 / freedom for part, freedom in parts)
    if len(parts) == 1 or squares == 0.0:
        return variance, len(columns) - len(parts)
    return variance, max(1, floor(variance**2 / squares + _ROUNDING))


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

    Each resample draws N hosts, for all seeds the same ones, and S seeds, both with replacement; ``strata`` [N] as in
    ``paired_bootstrap``. With row effects a, column effects b and residuals r of the table, the resampled means have
    the variance sum(a^2)/S^2 + sum(b^2)/N^2 + sum(r^2)/(S N)^2. For many hosts it expects the variance between seeds
    times (S - 1)/S and three times the residual one (Owen 2007): seeds count too little if they are few, chance within
    a cell too much. Where the spread between few seeds dominates, it is much too short; ``crossed_student`` is not.
    Both means of a resample are over the same hosts. None if a resampled denominator is not positive, because no share
    of it is defined then.
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
    values: NDArray[np.float64], below: NDArray[np.float64], strata: ArrayLike | None, samples: int, seed: int
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return resampled means [samples] of a table [S, N], and those of ``below`` [N] on the same hosts."""
    seeds, hosts = values.shape
    generator = np.random.default_rng(seed)
    columns = np.column_stack([values.T, below])
    by_seed = _resampled_means(columns, groups_of(hosts, strata), samples, generator)
    chosen = generator.integers(0, seeds, size=(samples, seeds))
    return np.take_along_axis(by_seed[:, :seeds], chosen, axis=1).mean(axis=1), by_seed[:, seeds]


def _check(values: NDArray[np.float64], confidence: float, samples: int) -> None:
    if not np.isfinite(values).all():
        raise ValueError("differences must be finite: leave out pairs of which one side is missing")
    if not 0.0 < confidence < 1.0 or samples < 1:
        raise ValueError(f"confidence {confidence} must lie in (0, 1) and samples {samples} be positive")


def groups_of(n: int, strata: ArrayLike | None) -> list[NDArray[np.int64]]:
    """Return the positions of each stratum in the order of the sorted labels, or all n if one is alone in its stratum.

    One pair has no spread, so the spread within such strata would say nothing of it.
    """
    everything = [np.arange(n)]
    if strata is None:
        return everything
    labels = np.asarray(strata)
    if labels.shape != (n,):
        raise ValueError(f"strata: expected [{n}], found shape {labels.shape}")
    groups = [np.flatnonzero(labels == label) for label in np.unique(labels)]
    return groups if min(map(len, groups)) >= 2 else everything


def _resampled_means(
    values: NDArray[np.float64], groups: list[NDArray[np.int64]], samples: int, generator: np.random.Generator
) -> NDArray[np.float64]:
    """Return means of resampled entries of ``values`` [n, ...], shape [samples, ...].

    The variance of a resampled mean of k entries is (k - 1) / k of that of a mean. Over many strata of few entries that
    adds up, so there the deviations of each are scaled up by the root of k / (k - 1).
    """
    sums = np.zeros((samples, *values.shape[1:]))
    for group in groups:
        pool = values[group]
        total, scale = pool.sum(axis=0), sqrt(len(pool) / (len(pool) - 1)) if len(groups) > 1 else 1.0
        block = max(1, BLOCK_ELEMENTS // pool.size)
        for start in range(0, samples, block):
            rows = min(block, samples - start)
            drawn = pool[generator.integers(0, len(pool), size=(rows, len(pool)))].sum(axis=1)
            sums[start : start + rows] += total + scale * (drawn - total)
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


def student_interval(values: ArrayLike, confidence: float = 0.95) -> Interval:
    """Return Student's interval of the mean of ``values`` [n], n >= 2; exact for normal values (Student 1908)."""
    array = _checked(values, confidence)
    half = student_quantile(0.5 + confidence / 2.0, len(array) - 1) * float(array.std(ddof=1)) / sqrt(len(array))
    mean = float(array.mean())
    return Interval(mean, mean - half, mean + half)


def hoeffding(values: ArrayLike, low: float, high: float, confidence: float = 0.95) -> Interval:
    """Return an interval of the mean of independent ``values`` [n] in [low, high] that holds for any distribution.

    Half of its width is (high - low) sqrt(ln(2 / delta) / (2 n)) (Hoeffding 1963, J. Am. Stat. Assoc. 58(301),
    theorem 2), with delta = 1 - confidence.

    Raises:
        ValueError: if a value lies outside the declared range; the bound would not hold.
    """
    array = _within(_checked(values, confidence), low, high)
    half = (high - low) * sqrt(log(2.0 / (1.0 - confidence)) / (2.0 * len(array)))
    mean = float(array.mean())
    return Interval(mean, mean - half, mean + half)


def empirical_bernstein(values: ArrayLike, low: float, high: float, confidence: float = 0.95) -> Interval:
    """Return an interval like ``hoeffding`` that is narrower where the values vary little.

    With L = ln(4 / delta), half of its width is sqrt(2 var L / n) + 7 (high - low) L / (3 (n - 1)): theorem 4 of Maurer
    and Pontil 2009 (COLT) once per side. ``var`` is the sample variance.
    """
    array = _within(_checked(values, confidence), low, high)
    level, count = log(4.0 / (1.0 - confidence)), len(array)
    half = sqrt(2.0 * float(array.var(ddof=1)) * level / count) + 7.0 * (high - low) * level / (3.0 * (count - 1))
    mean = float(array.mean())
    return Interval(mean, mean - half, mean + half)


def binomial_interval(successes: int, n: int, confidence: float = 0.95) -> Interval:
    """Return the share of successes among ``n`` independent trials with its exact interval.

    Clopper and Pearson 1934: each bound is the share under which what was found, or more of it, has the probability
    (1 - confidence) / 2. The interval covers the true share with at least ``confidence``. It is found by bisection.

    Raises:
        ValueError: unless 0 <= successes <= n, n >= 1 and 0 < confidence < 1.
    """
    if not (0 <= successes <= n and n >= 1 and 0.0 < confidence < 1.0):
        raise ValueError(f"expected successes in [0, {n}], n >= 1 and confidence in (0, 1), found {successes}")
    counts = np.arange(n + 1, dtype=np.float64)
    ways = np.array([lgamma(n + 1.0) - lgamma(count + 1.0) - lgamma(n - count + 1.0) for count in counts])

    def bound(tail: slice, is_rising: bool) -> float:
        below, above = 0.0, 1.0
        for _ in range(60):
            middle = (below + above) / 2.0
            chance = float(np.exp(ways + counts * log(middle) + (n - counts) * log1p(-middle))[tail].sum())
            below, above = (middle, above) if (chance < (1.0 - confidence) / 2.0) == is_rising else (below, middle)
        return (below + above) / 2.0

    lower = 0.0 if successes == 0 else bound(slice(successes, None), is_rising=True)
    upper = 1.0 if successes == n else bound(slice(None, successes + 1), is_rising=False)
    return Interval(successes / n, lower, upper)


@lru_cache(maxsize=1024)
def student_quantile(level: float, freedom: int) -> float:
    """Return the quantile of Student's distribution at ``level`` in [1/2, 1) with ``freedom`` >= 1 degrees of freedom.

    The distribution function is the finite sum of Abramowitz and Stegun 1964, 26.7.3 and 26.7.4; it is inverted by
    bisection on the angle atan(t / sqrt(freedom)).
    """
    if not (0.5 <= level < 1.0 and freedom >= 1):
        raise ValueError(f"level {level} must lie in [1/2, 1) and freedom {freedom} be 1 or more")
    odd, start = freedom % 2, 3 if freedom % 2 else 2
    steps = np.arange(start, freedom - 1, 2, dtype=np.float64)
    factors = (steps - 1.0) / steps

    def share(angle: float) -> float:
        """Return P(|T| <= t)."""
        terms = 1.0 + float(np.cumprod(factors * cos(angle) ** 2).sum())
        if not odd:
            return sin(angle) * terms
        return 2.0 / pi * (angle + (sin(angle) * cos(angle) * terms if freedom > 1 else 0.0))

    below, above = 0.0, pi / 2.0
    for _ in range(100):
        middle = (below + above) / 2.0
        below, above = (middle, above) if share(middle) < 2.0 * level - 1.0 else (below, middle)
    return sqrt(freedom) * sin(below) / cos(below)


def _checked(values: ArrayLike, confidence: float) -> NDArray[np.float64]:
    array = np.asarray(values, dtype=np.float64)
    if array.ndim != 1 or len(array) < 2 or not np.isfinite(array).all() or not 0.0 < confidence < 1.0:
        raise ValueError(
            f"values: expected [n], finite, with n >= 2, and confidence in (0, 1), found {array.shape}, {confidence}"
        )
    return array


def _within(values: NDArray[np.float64], low: float, high: float) -> NDArray[np.float64]:
    if not low < high or not (low <= values.min() and values.max() <= high):
        raise ValueError(f"values must lie in the declared range [{low}, {high}], found {values.min()}, {values.max()}")
    return values
