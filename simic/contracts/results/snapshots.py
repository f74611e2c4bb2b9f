"""Results of the commands on snapshots: list, diff, verify, prune and pins."""

from __future__ import annotations

from enum import Enum
from typing import Annotated, Any

from pydantic import Field

from simic.contracts.base import Contract, Count, Digest, Text, UtcDatetime

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
"""Largest number of characters of a pin's reason."""
Reason = Annotated[str, Field(max_length=REASON_CHARACTERS)]


class Pin(Contract):
    """One ledger line that excludes a snapshot from pruning, or includes it again."""

    snapshot: Digest
    is_pinned: bool
    reason: Reason | None
    at: UtcDatetime


class PolicyStatus(str, Enum):
    """Status of a policy."""

    CHAMPION = "champion"
    """In production now."""
    FORMER = "former"
    """Was champion once."""
    ACCEPTED = "accepted"
    """Accepted by the gate, never promoted."""
    REJECTED = "rejected"
    """Rejected by the gate."""
    UNJUDGED = "unjudged"
    """Trained, never judged: the policy of an earlier round, or of a run that ended early."""


class SnapshotUse(Contract):
    """A policy that learned from a snapshot, itself or through a policy from which its training started."""

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
    """Number of steps of usable episodes."""
    rejected: Count
    """Number of landed rows that were left out."""
    episodes: dict[str, Count]
    """Number of episodes per split."""
    reward_family: Text
    gamma: float
    size_bytes: Count
    """Size in bytes of its own files."""
    held_bytes: Count
    """Size in bytes of its linked parts, which the lake and other snapshots may share."""
    is_pinned: bool
    pinned_because: Reason | None
    used_by: list[SnapshotUse]


class SnapshotList(Contract):
    """All snapshots of a home, oldest first."""

    snapshots: list[SnapshotSummary]
    unreadable: dict[str, Text]
    """Problem by name of the folder."""


class Change(Contract):
    """A setting that differs between A and B; null where it is absent."""

    name: Text
    a: Any
    b: Any


class RowCounts(Contract):
    """Comparison of the rows of two snapshots, paired by episode and step."""

    only_a: Count
    only_b: Count
    changed: Count
    """Number of rows in both whose values differ."""
    same: Count


class EpisodeCounts(RowCounts):
    """The same for episodes; an episode is changed if any of its rows differs."""


class GroupDifference(Contract):
    """Rows and episodes of one split, controller and family, as in A, or as in B if A lacks the episode."""

    split: Text
    controller: Text
    family: Text
    episodes: EpisodeCounts
    rows: RowCounts


class SnapshotDifference(Contract):
    """Comparison of snapshots A and B."""

    a: Digest
    b: Digest
    manifest: list[Change]
    """Differences between the manifests."""
    settings: list[Change]
    """Settings that affect rows."""
    has_same_rules: bool
    """Whether the SQL files are identical."""
    columns_only_a: list[Text]
    columns_only_b: list[Text]
    rejected: dict[str, tuple[Count, Count]]
    """Number of rows left out by A and by B, per reason."""
    episodes: EpisodeCounts
    rows: RowCounts
    groups: list[GroupDifference]
    changed_columns: dict[str, Count]
    """Number of rows in both whose value differs, per common column."""
    episodes_only_a: list[Text]
    """Run ids, at most the requested number; the same holds below."""
    episodes_only_b: list[Text]
    episodes_changed: list[Text]


class SnapshotCheck(Contract):
    """Result of verifying every byte and every count of one snapshot against its manifest."""

    folder: Text
    digest: Digest | None
    """Digest in the manifest; null if the manifest cannot be read."""
    files: Count
    size_bytes: Count
    damage: list[Text]
    """Problems found; empty if the snapshot is intact."""


class Pruned(Contract):
    """A snapshot, and why it is kept or removed."""

    digest: Digest
    size_bytes: Count
    kept_because: list[Text]
    """Reasons for keeping it; empty if it is removed."""


class SnapshotPruning(Contract):
    """Result of ``simic snapshots prune``: every snapshot of the home, and whether it is kept or removed."""

    is_dry_run: bool
    """Whether nothing was removed, because ``--yes`` was not given."""
    keep: Count
    """Number of the newest snapshots that are kept in any case, as given with ``--keep``; at least 1."""
    snapshots: list[Pruned]
    """All snapshots before the removal, oldest first."""
    freed_bytes: Count
    """Bytes of disk space that the removal frees, or would free: files that the lake or a kept snapshot also links are
    not counted."""
