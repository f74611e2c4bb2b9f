"""The journal of retraining runs, by which a killed run is resumed instead of restarted."""

from __future__ import annotations

import os
import uuid
from enum import Enum
from typing import TYPE_CHECKING

from simic.contracts.base import Contract, Count, Digest, UtcDatetime

if TYPE_CHECKING:
    from simic.ledgers.ledger import Ledger
    from simic.runtime.clock import Clock

__all__ = ["RunEntry", "RunEvent", "RunIdentity", "RunJournal"]


class RunIdentity(Contract):
    """Properties that a run must share with a killed one to resume it."""

    profile: str
    seed: Count
    config_digest: Digest
    code_version: str


class RunEvent(str, Enum):
    """Event that a line of the journal records."""

    OPENED = "OPENED"
    RESUMED = "RESUMED"
    CLOSED = "CLOSED"


class RunEntry(Contract):
    """A line of the journal of runs."""

    token: str
    event: RunEvent
    identity: RunIdentity
    number: Count = 0
    """Number of runs that this home opened before; a resumed run keeps it."""
    start_digest: Digest | None
    """Digest of the champion when the run was opened; a resumed run keeps it."""
    outcome: str | None = None
    """For a closed run: accepted, rejected, or the error that ended it."""
    pid: int
    at: UtcDatetime


class RunJournal:
    """Reader and writer of the journal; callers hold the lock of the run."""

    def __init__(self, ledger: Ledger, clock: Clock) -> None:
        self._ledger = ledger
        self._clock = clock

    def open(self, identity: RunIdentity, champion: str | None) -> RunEntry:
        """Resume the last run if it has the same identity and is not closed; otherwise open a new one.

        An older unfinished run is never resumed, because experience and champion changed since.
        """
        entries = [RunEntry.model_validate(line) for line in self._ledger.read()]
        last = entries[-1] if entries else None
        if last is not None and last.event is not RunEvent.CLOSED and last.identity == identity:
            return self._append(last.model_copy(update={"event": RunEvent.RESUMED}))
        opened = RunEntry(
            token=uuid.uuid4().hex[:12],
            event=RunEvent.OPENED,
            identity=identity,
            number=sum(entry.event is RunEvent.OPENED for entry in entries),
            start_digest=champion,
            pid=os.getpid(),
            at=self._clock(),
        )
        return self._append(opened)

    def close(self, entry: RunEntry, outcome: str) -> None:
        """Close the run with its outcome; the next run opens a new entry."""
        self._append(entry.model_copy(update={"event": RunEvent.CLOSED, "outcome": outcome}))

    def _append(self, entry: RunEntry) -> RunEntry:
        stamped = entry.model_copy(update={"pid": os.getpid(), "at": self._clock()})
        self._ledger.append(stamped.model_dump(mode="json"))
        return stamped
