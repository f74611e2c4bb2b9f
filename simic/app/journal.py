"""Which runs were begun and which have ended, so that a killed one goes on instead of beginning anew."""

from __future__ import annotations

import os
import uuid
from enum import Enum
from typing import TYPE_CHECKING

from simic.contracts.base import Contract, Count, Digest, UtcDatetime

if TYPE_CHECKING:
    from simic.lake.ledger import Ledger
    from simic.runtime.clock import Clock

__all__ = ["RunEntry", "RunEvent", "RunIdentity", "RunJournal"]


class RunIdentity(Contract):
    """What must be equal for one run to be the continuation of another."""

    profile: str
    seed: Count
    config_digest: Digest
    code_version: str


class RunEvent(str, Enum):
    """A line's meaning."""

    OPENED = "OPENED"
    RESUMED = "RESUMED"
    CLOSED = "CLOSED"


class RunEntry(Contract):
    """One line of the journal."""

    token: str
    event: RunEvent
    identity: RunIdentity
    number: Count = 0
    """How many runs this home had begun before; a resumed run keeps it."""
    start_digest: Digest | None
    """The champion when the run was opened; a resumed run keeps it."""
    outcome: str | None = None
    """Of a closed run: accepted, rejected, or the error that ended it."""
    pid: int
    at: UtcDatetime


class RunJournal:
    """Only one process writes at a time: callers hold the lock of the run."""

    def __init__(self, ledger: Ledger, clock: Clock) -> None:
        self._ledger = ledger
        self._clock = clock

    def open(self, identity: RunIdentity, champion: str | None) -> RunEntry:
        """Go on with the last run if it is the same one and did not end; else begin a new one.

        An older unfinished run is never taken up again: experience and champion have moved on since.
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
        """The run ended by itself, well or badly; the next one begins anew."""
        self._append(entry.model_copy(update={"event": RunEvent.CLOSED, "outcome": outcome}))

    def _append(self, entry: RunEntry) -> RunEntry:
        stamped = entry.model_copy(update={"pid": os.getpid(), "at": self._clock()})
        self._ledger.append(stamped.model_dump(mode="json"))
        return stamped
