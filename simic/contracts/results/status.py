"""What ``simic status`` says: the champion of a home, its training rows and its evidence."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from simic.contracts.base import Contract, Count, Digest, Text, UtcDatetime
from simic.contracts.policy_update import PolicyUpdate, ValidationSummary
from simic.contracts.results.receipts import PolicyVersion
from simic.contracts.results.trials import Estimate

__all__ = ["ChampionStatus", "GainOn", "HomeStatus", "JudgedOn", "NewestDecision", "TrainingRows"]


class TrainingRows(Contract):
    """What a policy learned from. A field is null if no trusted receipt tells it."""

    snapshot: Digest
    """Snapshot of the last training."""
    rows: Count | None = None
    """Steps of the snapshot, in all splits."""
    reward_family: Text | None = None
    """Reward family of the snapshot."""
    episodes: Count | None = None
    """Distinct episodes that the last training learned from; null for Karn, which learns from comparisons."""
    sets: list[Text] | None = None
    """Host sets of the training episodes."""
    start: Digest | None = None
    """Policy from whose weights the last training started; null also for random weights and for Karn."""
    seed: Count
    """Seed of the last training."""


class GainOn(Contract):
    """What a candidate gained on the held-out hosts of one set, in points of return."""

    set: Text
    """Name of the host set."""
    hosts: Count
    """Number of hosts that the differences are over."""
    over: dict[str, Estimate]
    """Candidate minus each other controller, paired by host; on a further set only ``wait`` is known with an interval.
    """


class JudgedOn(Contract):
    """The judgement that accepted a champion."""

    summary: ValidationSummary
    """Figures of the judgement in the signed journal of promotions."""
    ordinal: Count
    """Number of the judgement in its home."""
    gain: GainOn | None = None
    """From the receipt of its validation; null without a trusted one."""
    further: list[GainOn] = Field(default_factory=list)
    """Gains on the further sets that were tried."""


class ChampionStatus(Contract):
    """The policy in use."""

    version: PolicyVersion
    operation: Literal["promote", "rollback"]
    """What made it champion."""
    since: UtcDatetime
    reason: Text
    learned: TrainingRows
    judged: JudgedOn
    published: PolicyUpdate | None = None
    """The newest update by which production knows of it; null if `simic publish` would send one."""


class NewestDecision(Contract):
    """The newest decision of the gate."""

    policy: Digest
    accepted: bool
    unmet: list[Text]
    """Criteria that did not pass, with value and bound."""
    decided_at: UtcDatetime


class HomeStatus(Contract):
    """The champion of a registered model and what may replace it."""

    schema_version: Literal[1] = 1
    model: Text
    champion: ChampionStatus | None
    """Null before the first promotion."""
    staged: PolicyVersion | None
    """The accepted version that waits to be promoted; null if none does."""
    newest: NewestDecision | None
    """Null before the first decision of the gate, and if the newest one is not trusted."""
    not_shown: list[Text]
    """Records that are missing or not trusted, so that what they tell is left out."""
