"""Statistics of two controllers on the same hosts, and of several such comparisons together.

The unit is a host. Both controllers grow each host under the same random numbers, so tests of a difference are paired.
"""

from __future__ import annotations

from math import sqrt
from statistics import NormalDist

import numpy as np
from numpy.typing import ArrayLike, NDArray

__all__ = ["holm", "mann_whitney_p", "minimum_detectable_effect", "probability_of_improvement", "sign_flip_p"]

_BLOCK_ELEMENTS = 1 << 20
"""Largest number of drawn signs in memory."""
_EXACT_PAIRS = 16
"""Most pairs other than zero for which all sign patterns are enumerated."""
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


def sign_flip_p(differences: ArrayLike, samples: int = 10_000, seed: int = 0) -> float:
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
    shares, found = ways[-1] / ways[-1].sum(), int(ranks[: len(left)].sum())
    return min(1.0, 2.0 * min(float(shares[: found + 1].sum()), float(shares[found:].sum())))


def minimum_detectable_effect(differences: ArrayLike, power: float = 0.8, alpha: float = 0.05) -> float:
    """Return the smallest mean difference that n pairs show with ``power`` in a two-sided test at level ``alpha``.

    (z(1 - alpha/2) + z(power)) s / sqrt(n), with the sample standard deviation s of ``differences`` [n], n >= 2 (Bloom
    1995, Minimum Detectable Effects, Evaluation Review 19(5), with normal quantiles). The unit is that of the entries.

    Raises:
        ValueError: if ``differences`` is not [n] and finite, or a probability is not in (0, 1).
    """
    values = _pairs(differences, at_least=2)
    if not (0.0 < power < 1.0 and 0.0 < alpha < 1.0):
        raise ValueError(f"power {power} and alpha {alpha} must lie in (0, 1)")
    normal = NormalDist()
    factor = normal.inv_cdf(1.0 - alpha / 2.0) + normal.inv_cdf(power)
    return factor * float(values.std(ddof=1)) / sqrt(len(values))


def _pairs(values: ArrayLike, at_least: int) -> NDArray[np.float64]:
    array = np.asarray(values, dtype=np.float64)
    if array.ndim != 1 or len(array) < at_least or not np.isfinite(array).all():
        raise ValueError(f"values: expected [n], finite, with n >= {at_least}, found shape {array.shape}")
    return array
