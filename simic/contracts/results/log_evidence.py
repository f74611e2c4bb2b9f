"""What logged episodes on held-out hosts say about a candidate, without growing a host."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, TypeAlias

from pydantic import Field, model_validator

from simic.contracts.base import Contract, Count, Digest, Finite, NonNegative, Text, UnitInterval

__all__ = ["EvidenceKind", "LogEvidence", "LogGroup", "LogSupport", "MeanWeight"]

EvidenceKind: TypeAlias = Literal["trials", "reports"]
"""Episodes that a judgement grew, or episodes that others logged."""


class LogSupport(Contract):
    """How much of a log speaks about one policy; the unit is a host."""

    hosts: Count
    effective_hosts: NonNegative
    """Effective sample size (sum w)^2 / sum w^2: the least one over the steps."""
    largest_share: UnitInterval
    """Largest share of one host in the sum of all weights."""
    largest_weight: NonNegative
    """Largest weight of an episode."""
    overlap: UnitInterval
    """Share of the episodes that the policy could have logged."""
    clip_count: Count
    """Number of ratios and weights that were clamped."""
    mean_weight: Finite | None
    """Mean weight of the episodes, whose expectation is the probability that an episode of the policy can occur in the
    log; null for fewer than two hosts."""
    mean_weight_error: NonNegative | None
    """Standard error of the mean weight; null for fewer than two hosts."""


class MeanWeight(Contract):
    """Mean weight of episodes under a policy; both are null for fewer than two hosts."""

    mean: Finite | None
    error: NonNegative | None
    """Standard error over hosts."""


class LogGroup(Contract):
    """The episodes on one set that one controller or policy logged."""

    set: Text
    behaviour: Text
    episodes: Count
    hosts: Count
    cut_off: UnitInterval | None = None
    """Share of the episodes of this group that were not logged to their end; null as in ``LogEvidence``."""
    weights: dict[str, MeanWeight]
    """By policy, as ``LogEvidence.support``."""


class LogEvidence(Contract):
    """Off-policy estimates of a candidate from episodes of held-out hosts, in undiscounted points of ``basic``.

    Numbers per host are the contributions to the linearised estimate: their mean is the estimate, and their spread
    gives its error. They come in the order of ``host_keys``.
    """

    estimator: Text
    snapshot_digest: Digest
    """Snapshot of the episodes, which need not be the one that the candidate learned from."""
    behaviours: dict[str, Count]
    """Number of episodes per controller or policy that logged them."""
    left_out: dict[str, Count]
    """Number of episodes of the snapshot that were not used, per reason."""
    episodes: Count
    cut_off: UnitInterval | None = None
    """Share of the episodes on held-out hosts of one set, the largest over the sets, that were not logged to their end,
    whoever logged them; the others are those that are used. Null if it was not counted."""
    horizons: list[Count] = Field(default_factory=list)
    """Horizons of the episodes, in epochs."""
    groups: list[LogGroup] = Field(default_factory=list)
    sets: list[Text]
    """Set of each host."""
    families: list[Text]
    host_keys: list[Count]
    host_episodes: list[Count] = Field(default_factory=list)
    """Number of episodes of each host; empty if it is not known."""
    support: dict[str, LogSupport]
    """By policy: the candidate and, where they are compared with it, ``wait`` and the champion."""
    returns: list[Finite]
    """Contributions to the candidate's expected return; empty where it is not defined."""
    gains: dict[str, list[Finite]]
    """Contributions to the difference between the candidate and each other; one that is not defined is left out."""

    @model_validator(mode="after")
    def _check_lengths(self) -> LogEvidence:
        hosts = len(self.host_keys)
        columns: dict[str, Sequence[object]] = {"sets": self.sets, "families": self.families, **self.gains}
        columns |= {"returns": self.returns} if self.returns else {}
        columns |= {"host_episodes": self.host_episodes} if self.host_episodes else {}
        if wrong := {name: len(values) for name, values in columns.items() if len(values) != hosts}:
            raise ValueError(f"expected {hosts} entries, one per host, found {wrong}")
        return self
