"""A comparison of controllers by pairs, on the same hosts."""

from __future__ import annotations

from enum import Enum
from typing import Annotated

from pydantic import Field

from simic.contracts.base import Contract, NonNegative, UnitInterval
from simic.contracts.receipts import Estimate, TrialReport

__all__ = ["Comparison", "PairComparison", "Verdict"]


class Verdict(str, Enum):
    """What a pair of controllers showed."""

    BETTER = "better"
    WORSE = "worse"
    NOT_SHOWN = "no difference shown"


class PairComparison(Contract):
    """``controller`` minus ``against`` on the same hosts; returns in points."""

    controller: str
    against: str
    verdict: Verdict
    """Better or worse where ``adjusted_p`` is at most 0.05."""
    difference: Estimate
    """Mean difference, paired by host."""
    by_family: dict[str, Estimate]
    """The same within each family of two or more hosts."""
    p: UnitInterval
    """Two-sided p value of the difference, from sign flips of the pairs."""
    adjusted_p: UnitInterval
    """``p`` adjusted for all pairs of the comparison by Holm's method."""
    probability_of_improvement: UnitInterval
    """Probability that a return of ``controller`` exceeds one of ``against``, ties half, without pairing."""
    detectable: NonNegative
    """Smallest mean difference that these hosts show with 80 % power, before the adjustment."""


class Comparison(Contract):
    """All pairs of the arms and the trials that they come from."""

    pairs: Annotated[list[PairComparison], Field(min_length=1)]
    """Each arm minus each later one; those of the first arm come first."""
    trials: TrialReport
