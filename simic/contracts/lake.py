"""Reports of lake maintenance and of the doctor."""

from __future__ import annotations

from enum import Enum
from typing import Annotated, Literal

from pydantic import Field

from simic.contracts.base import Contract, Count, UtcDatetime

__all__ = ["Check", "Compaction", "Health", "HealthReport", "LakeStatus", "Retention", "Vacuum"]

Text = Annotated[str, Field(max_length=4096)]


class LakeStatus(Contract):
    """What the ledger comes to."""

    place: Text
    """Of the parts."""
    parts: Count
    rows: Count
    size_bytes: Count
    small_parts: Count
    """Parts below ``lake.small_mb``; merging is for them."""
    oldest_landed_at: UtcDatetime | None
    newest_landed_at: UtcDatetime | None
    retired_files: Count
    """Files of merged and dropped parts that still lie in the store."""
    remembered_ids: Count
    """Dropped reports that would be recognised if they were told again."""
    damaged_rows: Count
    """Rows ever taken out as damaged, whether or not their reports landed again."""


class Compaction(Contract):
    """Small parts merged; rows and their order are as before."""

    merges: Count
    parts_before: Count
    parts_after: Count
    rows: Count
    """In the merged parts."""
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
    """Files deleted that no reader needs any more."""

    files: Count
    waiting: Count
    """Files of retired parts that are within their time of grace."""
    forgotten_ids: Count
    """Dropped reports that would come back as new from now on."""


class Health(str, Enum):
    """What a check came to."""

    HEALTHY = "healthy"
    REPAIRABLE = "repairable"
    """Left behind by a crash; ``--repair`` puts it right and loses nothing."""
    DAMAGED = "damaged"
    """Something committed is not as it was; ``--repair`` takes it out and asks for it again where it can."""
    REPAIRED = "repaired"
    LOST = "lost"
    """Taken out, and not everything of it could be had again."""


class Check(Contract):
    """One thing looked at."""

    name: Text
    health: Health
    found: Text
    remedy: Text
    """What ``--repair`` would do or did, or what a person can do; empty where nothing is to be done."""


class HealthReport(Contract):
    """Every check; healthy only if each one is."""

    schema_version: Literal[1] = 1
    checked_at: UtcDatetime
    is_deep: bool
    """Whether digests of all bytes were taken."""
    is_repair: bool
    checks: list[Check]

    @property
    def is_healthy(self) -> bool:
        """Nothing is left to be done."""
        return all(check.health in (Health.HEALTHY, Health.REPAIRED) for check in self.checks)
