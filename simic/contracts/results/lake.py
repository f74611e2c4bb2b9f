"""Results of lake maintenance and of the doctor."""

from __future__ import annotations

from enum import Enum
from typing import Literal

from simic.contracts.base import Contract, Count, Digest, Text, UtcDatetime

__all__ = ["Check", "Compaction", "Health", "HealthReport", "LakeStatus", "Retention", "Span", "Vacuum"]


class Span(Contract):
    """Adjacent lines of a delivery."""

    first: Count
    """Number of the first line, from 1."""
    last: Count
    """Number of the last line that was accepted; in earlier ledgers, of the last one that was read."""
    limit_bytes: Count | None = None
    """Longest line that was read whole; of a longer one its beginning counts. None in lines of earlier ledgers, which
    do not say it."""
    sha256: Digest
    """SHA-256 over the lines, each with a line end; blank lines do not count."""


class LakeStatus(Contract):
    """State of the lake according to its ledger."""

    place: Text
    """Location of the parts."""
    parts: Count
    rows: Count
    size_bytes: Count
    small_parts: Count
    """Number of parts that `simic lake compact` merges now: small neighbours of one UTC month, or of one day where
    ``lake.max_age_days`` is set."""
    oldest_landed_at: UtcDatetime | None
    newest_landed_at: UtcDatetime | None
    retired_files: Count
    """Files of merged and dropped parts that are not deleted yet."""
    remembered_ids: Count
    """Number of dropped reports that would be recognised if delivered again."""
    damaged_rows: Count
    """Number of rows ever removed as damaged, whether or not their reports landed again."""


class Compaction(Contract):
    """Small parts that were merged; rows and their order are unchanged."""

    merges: Count
    parts_before: Count
    parts_after: Count
    rows: Count
    """Number of rows in the merged parts."""
    size_bytes_before: Count
    size_bytes_after: Count


class Retention(Contract):
    """Parts dropped, oldest first."""

    parts_by_age: Count
    parts_by_bytes: Count
    rows: Count
    size_bytes: Count
    parts_left: Count
    size_bytes_left: Count


class Vacuum(Contract):
    """Deleted files that no reader needs."""

    files: Count
    waiting: Count
    """Files of retired parts within the grace period."""
    forgotten_ids: Count
    """Number of dropped reports that would no longer be recognised."""


class Health(str, Enum):
    """Result of a check."""

    HEALTHY = "healthy"
    REPAIRABLE = "repairable"
    """Left behind by a crash; ``--repair`` corrects it without loss."""
    DAMAGED = "damaged"
    """Committed data has changed; ``--repair`` removes it and requests it again where possible."""
    REPAIRED = "repaired"
    LOST = "lost"
    """Removed, and not all of it could be recovered."""


class Check(Contract):
    """Finding of `simic doctor` about one thing, with the remedy."""

    name: Text
    health: Health
    found: Text
    remedy: Text
    """What ``--repair`` did or would do, or what the operator can do; empty if nothing is needed."""


class HealthReport(Contract):
    """All findings; the home is healthy only if each one is."""

    schema_version: Literal[1] = 1
    checked_at: UtcDatetime
    is_deep: bool
    """Whether every byte was verified against its digest."""
    is_repair: bool
    checks: list[Check]

    @property
    def is_healthy(self) -> bool:
        """Return whether no problem is left."""
        return all(check.health in (Health.HEALTHY, Health.REPAIRED) for check in self.checks)
