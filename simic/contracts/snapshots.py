"""What is said about snapshots: what a home holds, what differs between two, what is damaged, what may go."""

from __future__ import annotations

from enum import Enum
from typing import Annotated, Any

from pydantic import Field

from simic.contracts.base import Contract, Count, Digest, UtcDatetime

__all__ = [
    "REASON_CHARACTERS",
    "Change",
    "EpisodeCounts",
    "GroupDifference",
    "Pin",
    "PolicyStatus",
    "Pruned",
    "RowCounts",
    "SnapshotCheck",
    "SnapshotDifference",
    "SnapshotList",
    "SnapshotPruning",
    "SnapshotSummary",
    "SnapshotUse",
]

REASON_CHARACTERS = 4096
"""Of a pin, at most."""
Text = Annotated[str, Field(max_length=REASON_CHARACTERS)]


class Pin(Contract):
    """One ledger line: from here on a snapshot is kept, or no longer."""

    snapshot: Digest
    is_pinned: bool
    reason: Text | None
    at: UtcDatetime


class PolicyStatus(str, Enum):
    """What became of a policy."""

    CHAMPION = "champion"
    """In force now."""
    FORMER = "former"
    """Was champion once."""
    ACCEPTED = "accepted"
    """The gate let it through, but it never became champion."""
    REJECTED = "rejected"
    """The gate turned it away."""
    UNJUDGED = "unjudged"
    """Trained, and never put before the gate: the policy of an earlier round, or of a run that ended early."""


class SnapshotUse(Contract):
    """A policy that learned from a snapshot, in its own training or in that of a policy it went on from."""

    policy: Digest
    standing: PolicyStatus
    is_direct: bool
    """Whether its own training read the snapshot."""


class SnapshotSummary(Contract):
    """One line of ``simic snapshots list``."""

    digest: Digest
    path: Text
    made_at: UtcDatetime
    rows: Count
    """Steps of usable episodes."""
    rejected: Count
    """Landed rows left out."""
    episodes: dict[str, Count]
    """Per split."""
    reward_family: Text
    gamma: float
    size_bytes: Count
    """Of its own files."""
    held_bytes: Count
    """Of the parts it holds, which the lake and other snapshots may hold too."""
    is_pinned: bool
    pinned_because: Text | None
    used_by: list[SnapshotUse]


class SnapshotList(Contract):
    """Everything under the snapshots of a home, oldest first."""

    snapshots: list[SnapshotSummary]
    unreadable: dict[str, Text]
    """What is wrong, by the folder's name."""


class Change(Contract):
    """A setting with one value in A and another in B; null where it is absent."""

    name: Text
    a: Any
    b: Any


class RowCounts(Contract):
    """Rows of two snapshots, paired by episode and step."""

    only_a: Count
    only_b: Count
    changed: Count
    """In both, with other values."""
    same: Count


class EpisodeCounts(RowCounts):
    """Likewise episodes; one with any row that is not the same in both is changed."""


class GroupDifference(Contract):
    """Rows and episodes of one split, controller and family, as A has them, or B where A lacks the episode."""

    split: Text
    controller: Text
    family: Text
    episodes: EpisodeCounts
    rows: RowCounts


class SnapshotDifference(Contract):
    """A and B side by side."""

    a: Digest
    b: Digest
    manifest: list[Change]
    """What the manifests say otherwise."""
    settings: list[Change]
    """Settings that decide over rows."""
    has_same_rules: bool
    """Whether the SQL files were the same, to the byte."""
    columns_only_a: list[Text]
    columns_only_b: list[Text]
    rejected: dict[str, tuple[Count, Count]]
    """Rows left out by A and by B, per reason."""
    episodes: EpisodeCounts
    rows: RowCounts
    groups: list[GroupDifference]
    changed_columns: dict[str, Count]
    """Rows in both whose value differs, per column that both have."""
    episodes_only_a: list[Text]
    """Run ids, at most as many as were asked for; likewise below."""
    episodes_only_b: list[Text]
    episodes_changed: list[Text]


class SnapshotCheck(Contract):
    """Every byte and every count of one snapshot against its manifest."""

    folder: Text
    digest: Digest | None
    """As claimed; null where the manifest cannot be read."""
    files: Count
    size_bytes: Count
    damage: list[Text]
    """Empty if the snapshot is whole."""


class Pruned(Contract):
    """A snapshot and why it goes or stays."""

    digest: Digest
    size_bytes: Count
    kept_because: list[Text]
    """Empty for one that goes."""


class SnapshotPruning(Contract):
    """What ``simic snapshots prune`` did, or would do."""

    is_dry_run: bool
    keep: Count
    snapshots: list[Pruned]
    """Oldest first."""
    freed_bytes: Count
