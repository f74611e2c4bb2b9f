"""Evaluation of a policy on episodes that another policy logged."""

from __future__ import annotations

from enum import Enum
from typing import Literal

from pydantic import Field

from simic.contracts.base import Contract, Count, Digest, Finite, NonNegative, Text, UnitInterval
from simic.contracts.results.receipts import Receipt

__all__ = ["EvaluationVerdict", "EvidenceCheck", "LowerBound", "OffPolicyReport", "OffPolicyRow", "Range"]


class EvaluationVerdict(str, Enum):
    """Result of comparing a policy, by its estimate, with the behaviour that was logged."""

    BETTER = "better"
    WORSE = "worse"
    NOT_SHOWN = "no difference shown"
    INSUFFICIENT = "insufficient evidence"


class Range(Contract):
    """An estimate in points and its interval; the interval is the wider one of bootstrap and Student."""

    value: Finite
    lower: Finite
    upper: Finite


class OffPolicyRow(Contract):
    """One estimator."""

    estimator: Text
    value: Range | None
    """Expected return of the policy; null where the estimate or its interval is not defined."""
    difference: Range | None
    """Expected return of the policy minus the mean return of the behaviour, paired by host; null where the difference
    or its interval is not defined."""
    n: Count
    effective_sample_size: NonNegative
    largest_weight: NonNegative
    """Largest weight of an episode."""
    largest_share: UnitInterval
    """Largest weight of an episode as a share of the sum of all weights."""
    overlap: UnitInterval
    """Share of the episodes that the policy could have logged."""
    clip_count: Count
    """Number of ratios and weights that were clamped."""


class EvidenceCheck(Contract):
    """A condition without which a log is no sufficient evidence."""

    name: Text
    found: Finite | None
    """Null where it could not be computed."""
    expected: Text
    passes: bool


class LowerBound(Contract):
    """A one-sided lower bound of the policy's expected return that holds for any distribution of returns."""

    method: Text
    value: Finite
    confidence: UnitInterval


class OffPolicyReport(Receipt):
    """Estimated return of a policy from a snapshot alone; returns are undiscounted points of ``basic``."""

    stage: Literal["evaluate"] = "evaluate"
    controller: Text
    policy_digest: Digest | None
    """Null for a controller without weights."""
    is_exploring: bool
    """Evaluated as it explores, not as it acts in trials."""
    snapshot_digest: Digest
    behaviours: dict[str, Count]
    """Number of episodes used per controller or policy that logged them."""
    sets: list[Text]
    horizons: list[Count] = Field(default_factory=list)
    """Horizons of these episodes; empty in receipts of earlier versions."""
    episodes: Count
    """Number of episodes used."""
    hosts: Count
    """Number of hosts on which they were logged: the units of all intervals."""
    left_out: dict[str, Count]
    """Number of episodes of the snapshot that were not used, per reason."""
    training_hosts: Text
    """What is known about the hosts that the policy learned from."""
    confidence: UnitInterval
    behaviour_return: Range | None
    """Mean return of the episodes as logged."""
    rows: list[OffPolicyRow]
    judged_by: list[Text]
    """Estimators whose intervals must all exclude 0 for a verdict."""
    checks: list[EvidenceCheck]
    lower_bounds: list[LowerBound] = Field(default_factory=list)
    """Only for a declared range of returns."""
    verdict: EvaluationVerdict
