"""Outbox of events: stored first, put on the bus second, marked as delivered third.

Layout: ``<root>/pending/<event id>.json``, ``<root>/done/<event id>.json`` and ``<root>/superseded/<event id>.json``,
one envelope each. A crash between putting and marking puts the same bytes under the same name again; the bus recognises
that, or the consumer does by the event id. A superseded event is never put again, but a process killed between putting
and marking may have put it.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from simic.bus.codec import decode, encode
from simic.bus.protocol import Bus
from simic.contracts.envelope import EventEnvelope
from simic.contracts.errors import IntegrityError, SimicError
from simic.runtime.files import atomic_write, rename_durably

__all__ = ["Outbox"]


class Outbox:
    """An outbox in a directory; the caller holds a lock.

    ``check`` raises a SimicError for an event that was edited. Edited events are not put on the bus and do not count as
    delivered.
    """

    def __init__(self, root: Path, check: Callable[[EventEnvelope], None]) -> None:
        self._pending, self._done, self._superseded = root / "pending", root / "done", root / "superseded"
        self._check = check

    def add(self, envelope: EventEnvelope) -> None:
        """Store an event for delivery; adding it again changes nothing."""
        if not (self._done / _name(envelope)).exists():
            atomic_write(self._pending / _name(envelope), encode(envelope))

    def waiting(self) -> list[EventEnvelope]:
        """Return every undelivered event in the order of creation; raise IntegrityError if one was edited."""
        waiting, damaged = self._read(self._pending)
        for path, problem in damaged:
            aside = path.parent.with_name("damaged")
            raise IntegrityError(
                f"{path} waits for delivery, but differs from what was signed: {problem}. Nothing was put on the bus; "
                f"`simic doctor --repair` moves it to {aside}, and `simic publish` then signs the update again"
            )
        return waiting

    def readable_waiting(self) -> list[EventEnvelope]:
        """Return undelivered events that are unedited, in the order of creation."""
        return self._read(self._pending)[0]

    def flush(
        self, bus: Bus, topic: str, is_due: Callable[[EventEnvelope], bool] = lambda _: True
    ) -> list[EventEnvelope]:
        """Put every undelivered event that is due on the bus, then mark it; return them in the order of creation.

        Raises IntegrityError, and puts none, if one that waits was edited.
        """
        waiting = [envelope for envelope in self.waiting() if is_due(envelope)]
        for envelope in waiting:
            bus.put(topic, envelope.event_id, [encode(envelope)])
            self._move(envelope, self._done)
        return waiting

    def supersede(self, envelope: EventEnvelope) -> None:
        """Withdraw an undelivered event: move it to ``superseded``."""
        self._move(envelope, self._superseded)

    def superseded(self) -> list[EventEnvelope]:
        """Return withdrawn events that are unedited, in the order of creation; they may have been put before."""
        return self._read(self._superseded)[0]

    def delivered(self) -> list[EventEnvelope]:
        """Return delivered events that are unedited, in the order of creation."""
        return self._read(self._done)[0]

    def known(self) -> list[EventEnvelope]:
        """Return every unedited event of the outbox."""
        return [event for folder in (self._pending, self._done, self._superseded) for event in self._read(folder)[0]]

    def damaged(self, *, is_pending: bool) -> list[tuple[Path, str]]:
        """Return the edited or unreadable files, of updates that wait or of all others, with the reasons."""
        folders = (self._pending,) if is_pending else (self._done, self._superseded)
        return [file for folder in folders for file in self._read(folder)[1]]

    def _move(self, envelope: EventEnvelope, folder: Path) -> None:
        """Move an undelivered event to another folder."""
        rename_durably(self._pending / _name(envelope), folder / _name(envelope))

    def _read(self, folder: Path) -> tuple[list[EventEnvelope], list[tuple[Path, str]]]:
        """Return readable events in the order of creation, and the files that hold none."""
        events, damaged = [], []
        for path in sorted(folder.glob("*.json")):
            try:
                envelope = decode(EventEnvelope, path.read_bytes())
                if path.name != _name(envelope):
                    raise IntegrityError(f"it holds event {envelope.event_id}")
                self._check(envelope)
                events.append(envelope)
            except SimicError as error:
                damaged.append((path, str(error)))
        return sorted(events, key=lambda envelope: (envelope.created_at, envelope.event_id)), damaged


def _name(envelope: EventEnvelope) -> str:
    return f"{envelope.event_id}.json"
