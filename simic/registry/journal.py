"""The journal of promotions: what was begun, and how it ended.

A promotion moves one pointer, but around that one row there is work before and after. An entry is opened before
anything moves and closed after all was verified, so a process killed in between leaves an open entry that
says what it meant to do.
"""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from simic.contracts.base import Contract, Count, Digest, UtcDatetime
from simic.lake.ledger import Ledger

__all__ = ["Entry", "Journal", "Operation", "Phase"]


class Operation(str, Enum):
    """Why the champion moves."""

    PROMOTE = "promote"
    ROLLBACK = "rollback"


class Phase(str, Enum):
    """How far it came."""

    OPEN = "open"
    DONE = "done"
    ROLLED_BACK = "rolled_back"
    """Nothing changed, or what changed was put back."""


class Entry(Contract):
    """One line of the journal; lines of one ``entry`` belong together."""

    schema_version: Literal[1] = 1
    entry: Count
    """Counts promotions and rollbacks from 1."""
    phase: Phase
    operation: Operation
    source: Count | None
    """Number of the champion before, if any."""
    target: Count
    """Number of the champion to be."""
    digest: Digest
    """Of the champion to be."""
    gate_digest: Digest
    reason: Annotated[str, Field(max_length=4096)]
    at: UtcDatetime
    """When it was begun."""


class Journal:
    """An append-only file with at most one open entry; its user holds a lock."""

    def __init__(self, path: Path) -> None:
        self._ledger = Ledger(path)

    def entries(self) -> list[Entry]:
        """All lines, oldest first."""
        return [Entry.model_validate(record) for record in self._ledger.read()]

    def open_entry(self) -> Entry | None:
        """What a killed process left behind."""
        entries = self.entries()
        return entries[-1] if entries and entries[-1].phase is Phase.OPEN else None

    def append(self, entry: Entry) -> None:
        """Durable when this returns."""
        self._ledger.append(entry.model_dump(mode="json"))

    def next_number(self) -> int:
        """For a new entry."""
        entries = self.entries()
        return entries[-1].entry + 1 if entries else 1
