"""A comparison of controllers by pairs, on the same hosts."""

from __future__ import annotations

from enum import Enum
from typing import Annotated, Literal

from pydantic import Field

from simic.contracts.base import Contract, NonNegative, Positive, Text, UnitInterval
from simic.contracts.results.trials import Estimate, TrialReport

__all__ = ["LEVEL", "Comparison", "PairComparison", "SequentialStop", "Verdict", "verdict_of"]

LEVEL = 0.05
"""Largest adjusted p value of a difference that counts as shown."""


class Verdict(str, Enum):
    """Whether the first of a pair is better or worse than the second, or neither is shown at level ``LEVEL``."""

    BETTER = "better"
    WORSE = "worse"
    NOT_SHOWN = "no difference shown"


def verdict_of(is_better: bool, adjusted_p: float) -> Verdict:
    """Return the verdict on a pair by the sign of its difference and the p value, adjusted for all pairs."""
    if adjusted_p > LEVEL:
        return Verdict.NOT_SHOWN
    return Verdict.BETTER if is_better else Verdict.WORSE


class PairComparison(Contract):
    """``controller`` minus ``against`` on the same hosts; returns in points."""

    controller: str
    against: str
    verdict: Verdict
    """Better or worse where ``adjusted_p`` is at most 0.05."""
    difference: Estimate
    """Mean difference, paired by host; the interval holds at every look of a comparison that stops by itself."""
    by_family: dict[str, Estimate]
    """Mean difference within each family of two or more hosts, with Student's interval."""
    p: UnitInterval
    """Two-sided p value of the difference, from sign flips of the pairs, or that of ``SequentialStop.bound``."""
    adjusted_p: UnitInterval
    """``p`` adjusted for all pairs of the comparison by Holm's method."""
    probability_of_improvement: UnitInterval
    """Probability that a return of ``controller`` exceeds one of ``against``, ties half, without pairing."""
    detectable: NonNegative | None
    """Smallest mean difference that these hosts show with 80 % power in the strictest step of Holm's method; null where
    so few hosts can show nothing, or all differences are equal."""
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
