"""Tests and intervals of mean paired differences that hold at every look, however the number of looks was chosen.

Under the null hypothesis each difference is as likely to have either sign, as for the sign flips of ``comparisons``.
Then, for every l, exp(l S - l^2 V / 2) with the sum S and the sum of squares V is a supermartingale (de la Pena 1999,
Annals of Probability 27(1)), and so is its mean over a normal l with variance r (Robbins 1970, Annals of Mathematical
Statistics 41(5); Howard, Ramdas, McAuliffe and Sekhon 2021, Annals of Statistics 49(2)):

    M = exp(r S^2 / (2 (1 + r V))) / sqrt(1 + r V)

By Ville's inequality M ever reaches 1/a with a chance of at most a. The signs are independent of the absolute values,
so r may depend on these. For differences with a skew the level holds in the limit of many pairs only, as for any
self-normalised sum (Waudby-Smith, Arbour, Sinha, Kennedy and Ramdas 2024, Annals of Statistics 52(6)).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from simic.numerics.intervals import Interval

__all__ = ["anytime_interval", "anytime_p"]

_BEST = 8.0
"""r V at which the bound at level 0.05 is narrowest: about 2 ln(1/a) + ln(1 + 2 ln(1/a)) (Howard et al. 2021)."""
_STEPS = 60
"""Halvings of a bracket: its relative width falls below rounding."""


def anytime_p(differences: ArrayLike, first: int, best_at: int) -> NDArray[np.float64]:
    """Return two-sided p values [...] of the means of ``differences`` [..., n], valid at every look at n pairs.

    Args:
        differences: Pairs in the order in which they came, finite.
        first: Number of pairs at the first look; their squares set the scale of the test.
        best_at: Number of pairs at which the test is most powerful.

    Raises:
        ValueError: if a shape, an entry or a number is none of these.
    """
    values = np.asarray(differences, dtype=np.float64)
    if values.ndim < 1 or not 2 <= first <= values.shape[-1] or best_at < first or not np.isfinite(values).all():
        raise ValueError(
            f"differences: expected [..., n], finite, with 2 <= first <= n and first <= best_at, found shape "
            f"{values.shape}, first {first}, best_at {best_at}"
        )
    squares = values**2
    total, scale = squares.sum(axis=-1), squares[..., :first].mean(axis=-1)
    # Without any difference at the first look, the scale is that of all pairs so far: it depends on no sign either.
    scale = np.where(scale > 0.0, scale, total / values.shape[-1])
    rate = np.divide(_BEST, scale * best_at, out=np.zeros_like(scale), where=scale > 0.0)
    growth = 1.0 + rate * total
    log_m = rate * values.sum(axis=-1) ** 2 / (2.0 * growth) - np.log(growth) / 2.0
    p_values: NDArray[np.float64] = np.exp(-np.maximum(log_m, 0.0))
    return p_values


def anytime_interval(differences: ArrayLike, confidence: float, first: int, best_at: int) -> Interval:
    """Return an interval that holds all means which ``anytime_p`` does not reject at 1 - ``confidence``.

    With that confidence the intervals of all looks at ``differences`` [n] contain the true mean (a confidence
    sequence). A bound is infinite where no mean is rejected, as for fewer than some ten pairs. The scale of the test
    depends on the mean that it tests. So if nearly all pairs of the first look are equal, the interval may also hold
    means that are rejected.
    """
    values = np.asarray(differences, dtype=np.float64)
    if values.ndim != 1 or not 0.0 < confidence < 1.0:
        raise ValueError(f"expected differences [n] and confidence in (0, 1), found {values.shape}, {confidence}")
    mean, spread = float(values.mean()), float(values.std())
    if spread == 0.0:
        return Interval(mean, mean, mean)
    lower, upper = (_bound(values, mean, sign * spread, 1.0 - confidence, first, best_at) for sign in (-1.0, 1.0))
    return Interval(mean, lower, upper)


def _bound(values: NDArray[np.float64], mean: float, step: float, level: float, first: int, best_at: int) -> float:
    """Return a mean in the direction of ``step`` where rejection begins, one ``step`` away or more if it can be."""

    def is_rejected(shift: float) -> bool:
        return float(anytime_p(values - mean - shift, first, best_at)) <= level

    outer = step
    for _ in range(_STEPS):
        if is_rejected(outer):
            break
        outer *= 2.0
    else:
        return step * float("inf")
    inner = 0.0
    for _ in range(_STEPS):
        middle = (inner + outer) / 2.0
        inner, outer = (inner, middle) if is_rejected(middle) else (middle, outer)
    return mean + outer
