"""What ``simic status`` says: the champion of a home, its training rows and its evidence."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from simic.contracts.base import Contract, Count, Digest, Text, UtcDatetime
from simic.contracts.policy_update import PolicyUpdate
from simic.contracts.receipts import PolicyVersion
from simic.contracts.trials import Estimate

__all__ = ["ChampionStatus", "GainOn", "HomeStatus", "NewestDecision", "TrainingRows"]


class TrainingRows(Contract):
    """The snapshot of the last training of a policy, and the trainings that led to it."""

    snapshot: Digest
    episodes: Count | None = None
    """Training episodes of the snapshot; null where its receipt is missing."""
    rows: Count | None = None
    """Steps of the snapshot; null where its receipt is missing."""
    reward_family: Text | None = None
    """Reward family of the snapshot; null where its receipt is missing."""
    sets: list[Text] = Field(default_factory=list)
    """Host sets of these episodes; empty where the receipt of the training is missing."""
    seed: Count
    trainings: Count
    """Number of trainings behind the weights, each from the weights of the one before, as far as their receipts are
    known."""


class GainOn(Contract):
    """What a candidate gained on the held-out hosts of one set, in points of return."""

    set: Text
    hosts: Count
    over: dict[str, Estimate]
    """Candidate minus each other controller, paired by host; on a further set only ``wait`` is known with an interval.
    """


class ChampionStatus(Contract):
    """The policy in use."""

    version: PolicyVersion
    operation: Literal["promote", "rollback"]
    """What made it champion."""
    since: UtcDatetime
    reason: Text
    learned: TrainingRows
    judged: GainOn | None = None
    """Evidence of the judgement that accepted it; null where its receipt is missing."""
    further: list[GainOn] = Field(default_factory=list)
    published: PolicyUpdate | None = None
    """The newest delivered update if it names the champion; null if production was not told of it."""


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
    """The accepted version that the next `simic promote` takes; null if none waits."""
    newest: NewestDecision | None
    """Null before the first decision of the gate."""
