"""Statistics of two controllers on the same hosts, and of several such comparisons together.

The unit is a host. Both controllers grow each host under the same random numbers, so tests of a difference are paired.
"""

from __future__ import annotations

from functools import lru_cache
from math import sqrt

import numpy as np
from numpy.typing import ArrayLike, NDArray

from simic.numerics.intervals import student_quantile

__all__ = ["holm", "mann_whitney_p", "minimum_detectable_effect", "probability_of_improvement", "sign_flip_p"]

_BLOCK_ELEMENTS = 1 << 20
"""Largest number of drawn signs in memory."""
_EXACT_PAIRS = 16
"""Most pairs other than zero for which all sign patterns are enumerated."""
_SAMPLES = 10_000
"""Sign patterns that are drawn for more of them."""
_DRAWS, _FEW_DRAWS = 4000, 1000
"""Draws of enumerated pairs, from which the detectable difference is found; the fewer ones for ``_FEW_DRAWS_FROM``
pairs or more, because each draw takes longer."""
_FEW_DRAWS_FROM = 15
_TOLERANCE = 1e-9
"""Share of the sum of absolute differences within which two sums count as equal: the order of additions differs."""


def holm(p_values: ArrayLike) -> NDArray[np.float64]:
    """Return p values [m] adjusted for all m comparisons, in the given order (Holm 1979, Scand. J. Statist. 6(2)).

    The i-th smallest of m p values, i from 0, is multiplied by m - i; the results never decrease and are at most 1.

    Raises:
        ValueError: if ``p_values`` is not [m] with entries in [0, 1].
    """
    values = np.asarray(p_values, dtype=np.float64)
    if values.ndim != 1 or not ((values >= 0.0) & (values <= 1.0)).all():
        raise ValueError(f"p_values: expected [m] with entries in [0, 1], found shape {values.shape}")
    order = np.argsort(values, kind="stable")
    adjusted = np.empty_like(values)
    adjusted[order] = np.minimum(1.0, np.maximum.accumulate(values[order] * np.arange(len(values), 0, -1)))
    return adjusted


def sign_flip_p(differences: ArrayLike, samples: int = _SAMPLES, seed: int = 0) -> float:
    """Return the two-sided p value of the mean of paired ``differences`` [n], n >= 1, under random signs.

    Under the null hypothesis, each difference is as likely to have either sign (Fisher 1935, The Design of Experiments,
    section 21). All patterns are enumerated for up to 16 differences other than 0. Beyond that, ``samples`` patterns
    are drawn from ``seed`` and the observed one counts too (Phipson and Smyth 2010, Stat. Appl. Genet. Mol.
    Biol. 9(1)). Without any difference, p is 1.

    Raises:
        ValueError: if ``differences`` is not [n] and finite, or ``samples`` is not positive.
    """
    values = _pairs(differences, at_least=1)
    if samples < 1:
        raise ValueError(f"samples: expected a positive number, found {samples}")
    moved = values[values != 0.0]
    if not len(moved):
        return 1.0
    bound = abs(float(moved.sum())) - _TOLERANCE * float(np.abs(moved).sum())
    if len(moved) <= _EXACT_PAIRS:
        bits = np.arange(1 << len(moved))[:, None] >> np.arange(len(moved)) & 1
        return float((np.abs((1 - 2 * bits) @ moved) >= bound).mean())
    generator, extreme, block = np.random.default_rng(seed), 0, max(1, _BLOCK_ELEMENTS // len(moved))
    for start in range(0, samples, block):
        signs = generator.choice((-1.0, 1.0), size=(min(block, samples - start), len(moved)))
        extreme += int((np.abs(signs @ moved) >= bound).sum())
    return (extreme + 1) / (samples + 1)


def probability_of_improvement(ours: ArrayLike, theirs: ArrayLike) -> float:
    """Return P(X > Y) + P(X = Y) / 2 for independent draws X of ``ours`` [n] and Y of ``theirs`` [m].

    Source: Agarwal et al. 2021, Deep Reinforcement Learning at the Edge of the Statistical Precipice, section 4.3. It
    is the Mann-Whitney U of ``ours`` over n m, and twice it less 1 is the rank-biserial correlation.

    Raises:
        ValueError: if a side is empty, not one-dimensional or not finite.
    """
    left, right = _pairs(ours, at_least=1), np.sort(_pairs(theirs, at_least=1))
    below = np.searchsorted(right, left, side="left") + np.searchsorted(right, left, side="right")
    return float(below.sum() / (2.0 * len(left) * len(right)))


def mann_whitney_p(ours: ArrayLike, theirs: ArrayLike) -> float:
    """Return the two-sided p value of the Mann-Whitney U of ``ours`` [n] against ``theirs`` [m].

    Under the null hypothesis all ways to label n of the n + m values as ours are equally likely (Mann and Whitney 1947,
    Ann. Math. Statist. 18(1)). The distribution of the rank sum over all of them is exact, also with ties, which have
    their mean rank. p is twice the smaller tail, and at most 1.

    Raises:
        ValueError: if a side is empty, not one-dimensional or not finite.
    """
    left, right = _pairs(ours, at_least=1), _pairs(theirs, at_least=1)
    values = np.concatenate([left, right])
    ordered = np.sort(values)
    # Twice the mean rank of each value, so that ranks of ties are whole numbers too.
    ranks = np.searchsorted(ordered, values, side="left") + np.searchsorted(ordered, values, side="right") + 1
    ways = np.zeros((len(left) + 1, int(ranks.sum()) + 1))
    ways[0, 0] = 1.0
    for rank in ranks.tolist():
        ways[1:, rank:] += ways[:-1, : ways.shape[1] - rank].copy()
    shares, rank_sum = ways[-1] / ways[-1].sum(), int(ranks[: len(left)].sum())
    return min(1.0, 2.0 * min(float(shares[: rank_sum + 1].sum()), float(shares[rank_sum:].sum())))


def minimum_detectable_effect(
    differences: ArrayLike, comparisons: int = 1, power: float = 0.8, alpha: float = 0.05
) -> float | None:
    """Return the smallest mean difference that sign flips of n pairs show with ``power`` at ``alpha / comparisons``.

    That is the level which Holm's method requires of the smallest of so many p values. The result is a factor times the
    sample standard deviation s of ``differences`` [n], n >= 2, in the unit of the entries. Beyond 16 pairs the factor
    is (t(1 - level/2) + t(power)) / sqrt(n) with quantiles of Student's distribution with n - 1 degrees of freedom
    (Bloom 1995, Minimum Detectable Effects, Evaluation Review 19(5)), which is an approximation: the power of 17 pairs
    is about 75 % in 21 comparisons and 71 % in 100, instead of 80 %. For fewer pairs the levels of the test are coarse,
    and the factor is simulated for normal differences.

    None where the pairs can show nothing, because even equal signs of all do not reach the level, and where all
    differences are equal, because their spread is unknown then.

    Raises:
        ValueError: if ``differences`` is not [n] and finite, a probability is not in (0, 1), ``power`` is below 1/2, or
            ``comparisons`` is not positive.
    """
    values = _pairs(differences, at_least=2)
    if not (0.5 <= power < 1.0 and 0.0 < alpha < 1.0 and comparisons >= 1):
        raise ValueError(
            f"power {power} must lie in [1/2, 1), alpha {alpha} in (0, 1), and comparisons {comparisons} be positive"
        )
    n, level = len(values), alpha / comparisons
    spread = float(values.std(ddof=1)) if np.ptp(values) > 0.0 else 0.0
    if _smallest_p(n) > level or spread == 0.0:
        return None
    return spread * _shown_shift(n, level, power)


def _smallest_p(n: int) -> float:
    """Return the p value of n differences of one sign."""
    return 2.0 ** (1 - n) if n <= _EXACT_PAIRS else 1.0 / (_SAMPLES + 1)


@lru_cache(maxsize=256)
def _shown_shift(n: int, level: float, power: float) -> float:
    """Return the mean of n normal differences with standard deviation 1 that sign flips show with ``power``.

    With a shift d of all differences z, flipping a set F of signs gives a sum no smaller than the observed one where
    sum(z in F) + d |F| <= 0. p <= level allows k = floor(level 2^(n-1)) such sets, the empty one included, so a draw is
    shown from the k-th largest of -sum(z in F) / |F| over the other sets on.
    """
    if n > _EXACT_PAIRS:
        return (student_quantile(1.0 - level / 2.0, n - 1) + student_quantile(power, n - 1)) / sqrt(n)
    flips = (np.arange(1, 1 << n)[:, None] >> np.arange(n) & 1).astype(np.float64)
    means, allowed = flips / flips.sum(axis=1, keepdims=True), int(level * 2.0 ** (n - 1) * (1.0 + _TOLERANCE))
    generator, block, least = np.random.default_rng(0), max(1, _BLOCK_ELEMENTS >> n), list[NDArray[np.float64]]()
    count = _DRAWS if n < _FEW_DRAWS_FROM else _FEW_DRAWS
    for start in range(0, count, block):
        draws = generator.normal(size=(min(block, count - start), n))
        least.append(np.partition(-draws @ means.T, -allowed, axis=1)[:, -allowed])
    return float(np.quantile(np.concatenate(least), power))


def _pairs(values: ArrayLike, at_least: int) -> NDArray[np.float64]:
    array = np.asarray(values, dtype=np.float64)
    if array.ndim != 1 or len(array) < at_least or not np.isfinite(array).all():
        raise ValueError(f"values: expected [n], finite, with n >= {at_least}, found shape {array.shape}")
    return array
