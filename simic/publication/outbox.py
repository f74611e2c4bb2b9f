"""Events on their way to the bus: written down first, put on the bus second, marked third.

Layout: ``<root>/pending/<event id>.json`` and ``<root>/done/<event id>.json``, one envelope each. A crash
between putting and marking puts the same bytes under the same name again, which the bus or, by its
event id, the consumer recognises.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from simic.bus.codec import decode, encode
from simic.bus.protocol import Bus
from simic.contracts.envelope import EventEnvelope
from simic.runtime.durable import sync_folder

__all__ = ["Outbox"]


class Outbox:
    """A directory; its user holds a lock."""

    def __init__(self, root: Path) -> None:
        self._pending, self._done = root / "pending", root / "done"

    def add(self, envelope: EventEnvelope) -> None:
        """Durably promise to deliver; adding an event again changes nothing."""
        if not (self._done / _name(envelope)).exists():
            _write(self._pending / _name(envelope), encode(envelope))

    def flush(self, bus: Bus, topic: str) -> list[EventEnvelope]:
        """Put every pending event on the bus, then mark it; returns those, in the order of creation."""
        flushed = []
        for envelope in _read_all(self._pending):
            bus.put(topic, envelope.event_id, [encode(envelope)])
            self._done.mkdir(parents=True, exist_ok=True)
            (self._pending / _name(envelope)).rename(self._done / _name(envelope))
            sync_folder(self._done)
            flushed.append(envelope)
        return flushed

    def delivered(self) -> Iterator[EventEnvelope]:
        """Everything ever delivered from here, in the order of creation."""
        return iter(_read_all(self._done))


def _name(envelope: EventEnvelope) -> str:
    return f"{envelope.event_id}.json"


def _read_all(folder: Path) -> list[EventEnvelope]:
    """In the order of creation."""
    found = [decode(EventEnvelope, path.read_bytes()) for path in folder.glob("*.json")]
    return sorted(found, key=lambda envelope: (envelope.created_at, envelope.event_id))


def _write(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(".tmp")
    with partial.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    partial.replace(path)
    sync_folder(path.parent)
