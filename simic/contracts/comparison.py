"""A comparison of controllers by pairs, on the same hosts."""

from __future__ import annotations

from enum import Enum
from typing import Annotated, Literal

from pydantic import Field

from simic.contracts.base import Contract, Finite, NonNegative, Positive, UnitInterval
from simic.contracts.receipts import Text
from simic.contracts.trials import Estimate, TrialReport

__all__ = ["FEWEST_HOSTS", "LEVEL", "Comparison", "FamilyDifference", "PairComparison", "SequentialStop", "Verdict"]

LEVEL = 0.05
"""Largest adjusted p value of a difference that counts as shown."""

FEWEST_HOSTS = 8
"""Hosts of a family from which on its difference has an interval. With fewer it says little: the bootstrap interval of
2 or 3 differences is their range, which contains the mean of a symmetric distribution in 50 % or 75 % of the cases."""


class Verdict(str, Enum):
    """What a pair of controllers showed."""

    BETTER = "better"
    WORSE = "worse"
    NOT_SHOWN = "no difference shown"


class FamilyDifference(Contract):
    """Mean difference within a family in points, paired by host."""

    mean: Finite
    lower: Finite | None
    """Lower bound of the interval; null, as ``upper`` is, below ``FEWEST_HOSTS`` hosts."""
    upper: Finite | None
    confidence: Annotated[float, Field(gt=0.5, lt=1.0)]
    n: Annotated[int, Field(ge=2, le=2**53)]
    """Number of pairs."""


class PairComparison(Contract):
    """``controller`` minus ``against`` on the same hosts; returns in points."""

    controller: str
    against: str
    verdict: Verdict
    """Better or worse where ``adjusted_p`` is at most 0.05."""
    difference: Estimate
    """Mean difference, paired by host; the interval holds at every look of a comparison that stops by itself."""
    by_family: dict[str, FamilyDifference]
    """The same within each family of two or more hosts."""
    p: UnitInterval
    """Two-sided p value of the difference, from sign flips of the pairs, or that of ``SequentialStop.bound``."""
    adjusted_p: UnitInterval
    """``p`` adjusted for all pairs of the comparison by Holm's method."""
    probability_of_improvement: UnitInterval
    """Probability that a return of ``controller`` exceeds one of ``against``, ties half, without pairing."""
    detectable: NonNegative
    """Smallest mean difference that these hosts show with 80 % power, before the adjustment."""
    scored_by: Literal["validation", "test"] = "validation"
    """Accuracy that the returns of both end with; ``test`` if one of them is an arm that searches."""


class SequentialStop(Contract):
    """How a comparison ended that stops by itself."""

    looks: Positive
    most_looks: Positive
    """Looks at which all hosts would have grown."""
    hosts: Positive
    most_hosts: Positive
    is_decided: bool
    """Whether every pair showed a difference; otherwise all hosts have grown."""
    bound: Text
    """The test that makes p values and intervals hold at every look."""


class Comparison(Contract):
    """All pairs of the arms and the trials that they come from."""

    pairs: Annotated[list[PairComparison], Field(min_length=1)]
    """Each arm minus each later one; those of the first arm come first."""
    trials: TrialReport
    sequential: SequentialStop | None = None
    """Null for a comparison on a number of hosts that was fixed in advance."""
