"""Lower confidence bounds of mean paired differences, at levels far below 5 %.

The unit is a pair: one host under two controllers. A percentile bootstrap of some thousand resamples has no quantile at
a level of 1e-5, so these bounds are studentised.
"""

from __future__ import annotations

from statistics import NormalDist
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from simic.numerics.intervals import groups_of

__all__ = ["LEAST_STRATUM", "MeanBound", "lower_bound"]

LEAST_STRATUM = 12
"""Pairs of the smallest stratum. Of 2 to 6 pairs with unequal spreads, Satterthwaite's degrees of freedom are too many:
at a level of 0.1 % a bound is too high up to 16 times as often as the level says."""
_LEAST_SKEW = 1e-6
"""Skewness below which the correction is smaller than rounding."""


class MeanBound(NamedTuple):
    """A bound per sample; fields have the shape of the samples without their last axis, and the unit of the entries."""

    mean: NDArray[np.float64]
    lower: NDArray[np.float64]
    """Lower confidence bound of the mean."""
    detectable: NDArray[np.float64]
    """Smallest true mean at which the lower bound exceeds 0 with the asked power."""


def lower_bound(
    differences: ArrayLike, alpha: ArrayLike, strata: ArrayLike | None = None, power: float = 0.8
) -> MeanBound:
    """Return one-sided lower bounds, at level ``alpha`` [...], of the means of ``differences`` [..., n], n >= 2.

    Each is mean - c s, where s is the standard error within ``strata`` [n] (Cochran 1977, Sampling Techniques, section
    5.4), and c the Student quantile at Satterthwaite's degrees of freedom (1946, Biometrics Bulletin 2(6)). Where the
    sample is skewed to the left, as if a controller rarely loses much, c is enlarged by Hall's transformation (1992,
    J. R. Statist. Soc. B 54(1)): there a Student bound is too high, by far at small levels. A skew to the right is not
    corrected, because it makes the bound cautious. With fewer than ``LEAST_STRATUM`` pairs in a stratum there are no
    strata, and the spread between them counts too. Equal entries have their mean as bound.

    Args:
        differences: Samples, finite.
        alpha: Chances that a bound exceeds the true mean, between 0 and 0.5.
        strata: Labels of the pairs, such as families of hosts.
        power: Chance with which the mean in ``detectable`` is found.

    Raises:
        ValueError: if a shape, an entry or a probability is none of these.
    """
    from scipy.special import stdtrit  # type: ignore[import-untyped]  # every command would wait for it

    values, level = np.asarray(differences, dtype=np.float64), np.asarray(alpha, dtype=np.float64)
    if values.ndim < 1 or values.shape[-1] < 2 or not np.isfinite(values).all():
        raise ValueError(f"differences: expected [..., n], finite, with n >= 2, found shape {values.shape}")
    if not ((level > 0.0) & (level < 0.5)).all() or not 0.5 <= power < 1.0:
        raise ValueError(f"alpha {level} must lie in (0, 0.5) and power {power} in [0.5, 1)")
    variance, third, squares = np.zeros((3, *values.shape[:-1]))
    n = values.shape[-1]
    groups = groups_of(n, strata)
    for rows in groups if min(map(len, groups)) >= LEAST_STRATUM else groups_of(n, None):
        own, size = values[..., rows], len(rows)
        centred = own - own.mean(axis=-1, keepdims=True)
        part = size * (centred**2).sum(axis=-1) / ((size - 1) * n**2)
        variance += part
        squares += part**2 / (size - 1)
        if size > 2:
            third += size**2 * (centred**3).sum(axis=-1) / ((size - 1) * (size - 2) * n**3)
    mean, error, has_spread = values.mean(axis=-1), np.sqrt(variance), variance > 0.0
    freedom = np.divide(variance**2, squares, out=np.ones_like(variance), where=has_spread)
    skew = np.divide(third, variance * error, out=np.zeros_like(variance), where=has_spread)
    student = -stdtrit(freedom, level)
    factor = _against_left_skew(student, np.minimum(skew, 0.0))
    detectable = (factor + NormalDist().inv_cdf(power)) * error
    return MeanBound(mean, np.where(has_spread, mean - factor * error, mean), detectable)


def _against_left_skew(quantile: NDArray[np.float64], skew: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the quantiles before Hall's transformation with ``skew``, that of the mean; without skew the same ones."""
    safe = np.where(skew < -_LEAST_SKEW, skew, -_LEAST_SKEW)
    inverse = 3.0 / safe * (np.cbrt(1.0 + safe * (quantile - safe / 6.0)) - 1.0)
    return np.where(skew < -_LEAST_SKEW, inverse, quantile)
