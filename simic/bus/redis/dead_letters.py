"""Entries that could not be delivered, on a stream of their own: ``<topic>.dead``, bounded, with the reason.

A dead letter has the fields ``reason``, ``message``, ``entry`` (the id it had), ``attempts``, ``died_at`` and
``is_whole``, and then the fields of the entry itself under ``=<name>``. An entry that is too large, or has too many
fields, is cut and cannot be put back.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from enum import Enum
from typing import Any, NamedTuple

import redis

from simic.bus.protocol import DeadLetter
from simic.bus.redis.connection import RedisServer
from simic.bus.redis.entries import Fields, key_of

__all__ = ["DeadEntry", "DeadLetters", "DeathReason"]

RAW_LIMIT_BYTES = 1 << 20
"""Largest size in bytes of all fields of an entry together; longer ones are cut."""
_MOST_FIELDS = 64
_MESSAGE_LIMIT = 512
"""Largest length of a message: messages quote field names, which may be as long as an entry."""
_OWN = b"="
_PAGE = 100


class DeathReason(str, Enum):
    """Why an entry was not delivered, or not again."""

    MALFORMED = "malformed"
    """The fields are not a valid envelope; ``message`` says which and why."""
    EXPIRED = "expired"
    """Older than its time to live."""
    ATTEMPTS = "attempts"
    """Delivered the maximum number of times and never acknowledged; it may crash its consumers."""


class DeadEntry(NamedTuple):
    """An entry to move to the dead letters."""

    entry_id: bytes
    fields: Fields
    reason: DeathReason
    message: str
    attempts: int


class DeadLetters:
    """The dead-letter stream of one topic."""

    def __init__(self, server: RedisServer, topic: str, group: str, limit: int) -> None:
        self._server, self._topic, self._group, self._limit = server, topic, group, limit
        self.key = f"{topic}.dead"

    def move(self, entries: Sequence[DeadEntry], now: datetime) -> int:
        """Move entries to the dead letters and acknowledge them in one transaction; return how many old ones were cut.

        After a repeated request letters may be there twice; each names its entry.
        """

        def move(client: redis.Redis) -> int:
            with client.pipeline(transaction=True) as pipe:
                pipe.xlen(self.key)
                for entry in entries:
                    pipe.xadd(self.key, _letter(entry, now), maxlen=self._limit, approximate=False)
                pipe.xack(self._topic, self._group, *(entry.entry_id for entry in entries))
                pipe.xlen(self.key)
                before, *_, after = pipe.execute()
            return int(before) + len(entries) - int(after)

        return self._server.call(f"move entries of {self._topic} to {self.key}", move)

    def count(self) -> int:
        """Return the number of letters."""
        return self._server.call(f"count {self.key}", lambda client: int(client.xlen(self.key)))

    def read(self) -> Iterator[DeadLetter]:
        """Yield every letter, oldest first."""
        start = "-"
        while True:
            page = self._page(start)
            for letter_id, fields in page:
                yield _read_letter(letter_id, fields)
            if len(page) < _PAGE:
                return
            start = "(" + page[-1][0].decode()

    def replay(self, now: datetime) -> int:
        """Put every complete letter back on its topic as a new entry, each in one transaction; return how many."""
        last, done = None, 0
        for letter in self.read():
            last = last or self._newest()
            if key_of(letter.letter_id.encode()) > last:
                break  # it died while we were putting others back
            if letter.is_whole and letter.fields:
                self._put_back(letter, now)
                done += 1
        return done

    def _page(self, start: str) -> list[Any]:
        def read(client: redis.Redis) -> Any:
            return client.xrange(self.key, start, "+", _PAGE)

        return list(self._server.call(f"read {self.key}", read))

    def _newest(self) -> tuple[int, int]:
        def read(client: redis.Redis) -> Any:
            return client.xrevrange(self.key, count=1)

        entries = self._server.call(f"read {self.key}", read)
        return key_of(entries[0][0]) if entries else (0, 0)

    def _put_back(self, letter: DeadLetter, now: datetime) -> None:
        fields: dict[Any, Any] = {name: value for name, value in letter.fields.items() if name != b"attempt"}
        if b"created_at" in fields:  # else it would have expired already
            fields[b"created_at"] = now.isoformat().encode()

        def move(client: redis.Redis) -> None:
            with client.pipeline(transaction=True) as pipe:
                pipe.xadd(self._topic, fields)
                pipe.xdel(self.key, letter.letter_id)
                pipe.execute()

        self._server.call(f"put dead letter {letter.letter_id} back on {self._topic}", move)


def _letter(entry: DeadEntry, now: datetime) -> dict[Any, Any]:
    size = sum(len(name) + len(value) for name, value in entry.fields.items())
    is_whole = size <= RAW_LIMIT_BYTES and len(entry.fields) <= _MOST_FIELDS
    letter: dict[Any, Any] = {
        "reason": entry.reason.value,
        "message": entry.message[:_MESSAGE_LIMIT],
        "entry": entry.entry_id.decode(),
        "attempts": str(entry.attempts),
        "died_at": now.isoformat(),
        "is_whole": str(int(is_whole)),
    }
    room = RAW_LIMIT_BYTES
    for name, value in list(entry.fields.items())[:_MOST_FIELDS]:
        kept_name = name[:room]
        kept = value[: room - len(kept_name)]
        letter[_OWN + kept_name] = kept
        room -= len(kept_name) + len(kept)
    return letter


def _read_letter(letter_id: bytes, fields: Fields) -> DeadLetter:
    def text(name: bytes) -> str:
        return fields.get(name, b"").decode("utf-8", "replace")

    return DeadLetter(
        letter_id=letter_id.decode(),
        entry=text(b"entry"),
        reason=text(b"reason"),
        message=text(b"message"),
        attempts=int(attempts) if (attempts := text(b"attempts")).isdecimal() else 0,
        died_at=text(b"died_at"),
        is_whole=fields.get(b"is_whole") == b"1",
        fields={name.removeprefix(_OWN): value for name, value in fields.items() if name.startswith(_OWN)},
    )
