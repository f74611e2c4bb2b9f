"""Sums of ratios of means over episodes, and intervals of them.

Every off-policy estimate has this form: a mean has denominators of 1, a self-normalised estimate has the weights as
denominators, and a difference of two estimates is the concatenation of their terms. The sums are additive, so episodes
of one host are added up before any interval, and hosts are resampled as a whole.

Shapes: N units (episodes or hosts), K terms.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from simic.numerics.intervals import BLOCK_ELEMENTS, Interval, student_interval

__all__ = ["RatioSums", "contributions", "joined", "ratio_bootstrap", "ratio_student"]


class RatioSums(NamedTuple):
    """The estimate sum_k (sum_i numerators[i, k] / sum_i denominators[i, k])."""

    numerators: NDArray[np.float64]
    """[N, K]"""
    denominators: NDArray[np.float64]
    """[N, K], not negative."""

    @property
    def value(self) -> float | None:
        """Return the estimate; None if a sum of denominators is 0, because it is not defined then."""
        below = self.denominators.sum(axis=0)
        return float((self.numerators.sum(axis=0) / below).sum()) if (below > 0.0).all() else None

    def by_group(self, groups: ArrayLike) -> RatioSums:
        """Return the sums over the units of each group; ``groups`` [N] are labels, and groups come in their order."""
        labels = np.unique(np.asarray(groups), return_inverse=True)[1].reshape(-1)
        totals = [np.zeros((labels.max() + 1, values.shape[1])) for values in self]
        for total, values in zip(totals, self, strict=True):
            np.add.at(total, labels, values)
        return RatioSums(*totals)


def joined(ours: RatioSums, theirs: RatioSums) -> RatioSums:
    """Return the terms of ``ours`` minus ``theirs``, over the same units: their difference, paired by unit."""
    return RatioSums(
        np.concatenate([ours.numerators, -theirs.numerators], axis=1),
        np.concatenate([ours.denominators, theirs.denominators], axis=1),
    )


def contributions(sums: RatioSums) -> NDArray[np.float64] | None:
    """Return what each unit contributes to the linearised estimate [N] (delta method); None if it is not defined.

    Unit i contributes value + sum_k (numerator - ratio_k denominator) / mean denominator_k (Owen 2013, Monte Carlo
    theory, methods and examples, section 9.2). Their mean is the estimate; for a mean they are its entries.
    """
    value = sums.value
    if value is None:
        return None
    below = sums.denominators.sum(axis=0)
    ratios = sums.numerators.sum(axis=0) / below
    scaled = (sums.numerators - ratios * sums.denominators) / (below / len(sums.denominators))
    per_unit: NDArray[np.float64] = value + scaled.sum(axis=1)
    return per_unit


def ratio_student(sums: RatioSums, confidence: float = 0.95) -> Interval | None:
    """Return Student's interval of the contributions of two or more units; None if the estimate is not defined.

    For a mean this is Student's interval itself.
    """
    value, per_unit = sums.value, contributions(sums)
    if value is None or per_unit is None:
        return None
    _, lower, upper = student_interval(per_unit, confidence)
    return Interval(value, lower, upper)


def ratio_bootstrap(sums: RatioSums, confidence: float = 0.95, samples: int = 1000, seed: int = 0) -> Interval | None:
    """Return a percentile interval from resampled units, two or more, all terms of a unit together.

    None if the estimate is not defined in the data or in a resample: no weight is left there to divide by. Equal
    arguments give equal bits.
    """
    value, count = sums.value, len(sums.numerators)
    if count < 2 or samples < 1 or not 0.0 < confidence < 1.0:
        raise ValueError(f"expected 2 or more units, found {count}; samples {samples}, confidence {confidence}")
    if value is None:
        return None
    generator, columns = np.random.default_rng(seed), np.concatenate(sums, axis=1)
    terms, block, replicates = sums.numerators.shape[1], max(1, BLOCK_ELEMENTS // count), []
    for start in range(0, samples, block):
        rows = min(block, samples - start)
        drawn = generator.integers(0, count, size=(rows, count)) + count * np.arange(rows)[:, None]
        times = np.bincount(drawn.ravel(), minlength=rows * count).reshape(rows, count)
        totals = times.astype(np.float64) @ columns
        if not (totals[:, terms:] > 0.0).all():
            return None
        replicates.append((totals[:, :terms] / totals[:, terms:]).sum(axis=1))
    tail = (1.0 - confidence) / 2.0
    lower, upper = np.quantile(np.concatenate(replicates), (tail, 1.0 - tail))
    return Interval(value, float(lower), float(upper))
