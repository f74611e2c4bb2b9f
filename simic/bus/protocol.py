"""The protocol of every transport: delivery at least once, in batches of lines that the consumer acknowledges."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple, Protocol, runtime_checkable

from simic.contracts.envelope import EventEnvelope

__all__ = [
    "ENDS",
    "Bus",
    "BusCounters",
    "DeadLetter",
    "Defect",
    "Delivery",
    "Line",
    "RemoteBus",
    "TopicStatus",
]


class Defect(str, Enum):
    """Why a line is incomplete, or why its source yields no further lines."""

    TOO_LONG = "too_long"
    """Longer than the reader's limit; ``data`` holds its beginning."""
    TORN = "torn"
    """The source ended or became unreadable here; ``data`` holds the readable part of the line."""
    UNREADABLE = "unreadable"
    """The source cannot be claimed or read further; ``note`` says why."""
    GIVEN_UP = "given_up"
    """The source exceeds a limit of the reader; ``note`` says which. The rest was not read."""


ENDS = frozenset({Defect.TORN, Defect.UNREADABLE, Defect.GIVEN_UP})
"""Defects of the last line of a source that was not read completely."""


class Line(NamedTuple):
    """One line of a delivery."""

    number: int
    """From 1, counting blank lines; for a stream, the number of the entry (see ``location_of``). 0 stands for the
    source as a whole."""
    data: bytes
    """Without its line end; never longer than the reader's limit."""
    defect: Defect | None
    note: str = ""
    """Cause of a defect in one sentence for the operator, if the reader knows more than the kind."""
    envelope: EventEnvelope | None = None
    """The envelope in which it travelled; its event id and payload need not be set, because they follow from ``data``.
    None for a line that a program put into the spool by itself, and on topics whose lines are envelopes."""


@dataclass(frozen=True)
class Delivery:
    """Lines that belong together; delivered again until acknowledged."""

    topic: str
    source: str
    """Names the delivery; the same on every redelivery."""
    open: Callable[[int], Iterator[Line]]
    """``open(max_line_bytes)`` reads the lines from the beginning in constant memory, without blank ones."""
    isolate: bool = False
    """An earlier attempt was never acknowledged. Commit earlier deliveries first, then this one alone: if a line
    crashes its consumer, no other delivery is affected."""
    abandon: Callable[[], None] | None = None
    """Tell the transport that the rest will not be read; on acknowledgement it then keeps the delivery separately. If
    None, the transport cannot keep it: the consumer must read every line, or the rest is lost."""
    has_own_name: bool = True
    """Whether no delivery of other lines ever has its ``source``."""


class BusCounters(NamedTuple):
    """Counters for a topic since the last ``claim``; the unit is files (spool) or entries (Redis)."""

    retried: int
    """Delivered again, because they were not acknowledged."""
    reclaimed: int
    """Taken over from a consumer that held them too long."""
    dead_lettered: int
    """Moved to the dead-letter stream: malformed, expired, or delivered too often."""
    lost: int
    """Trimmed from the stream before they were delivered or acknowledged."""
    lag: int | None
    """Not delivered or not acknowledged now; None if the bus does not answer."""


class TopicStatus(NamedTuple):
    """The state of one topic, for an operator."""

    topic: str
    transport: str
    """``spool <directory>`` or ``redis <host>:<port>/<database>``."""
    length: int | None
    """Entries of the stream, including acknowledged ones, or waiting files of the spool. None, like the next three,
    while Redis does not answer."""
    undelivered: int | None
    pending: int | None
    """Delivered and not acknowledged."""
    dead_letters: int | None
    spilled: int
    """Files in the spool that wait for Redis."""
    aside: int = 0
    """Files of the spool that could not be read completely; they wait for a person."""


class DeadLetter(NamedTuple):
    """An entry that could not be delivered."""

    letter_id: str
    """Its own id."""
    entry: str
    """The id it had on its topic."""
    reason: str
    message: str
    attempts: int
    died_at: str
    is_whole: bool
    """All fields were kept, so the entry can be put back."""
    fields: dict[bytes, bytes]
    """Fields of the entry, by name."""

    @property
    def raw(self) -> bytes:
        """Return the payload, or every field if there is none."""
        return self.fields.get(b"payload") or b" ".join(part for pair in self.fields.items() for part in pair)


class Bus(Protocol):
    """A transport of lines between processes."""

    def put(self, topic: str, name: str, lines: Iterable[bytes]) -> str:
        """Publish lines durably, each without a line end, and return their source."""

    def claim(self, topic: str) -> Iterator[Delivery]:
        """Yield deliveries for this consumer: first those claimed before and not acknowledged, then new ones."""

    def ack(self, delivery: Delivery) -> None:
        """Acknowledge a delivery whose effect is durable; it is not delivered again."""

    def pending(self, topic: str) -> int:
        """Return the number of deliveries not yet acknowledged."""

    def counters(self, topic: str) -> BusCounters:
        """Return the counters since the newest claim of a topic; never fails."""

    def status(self, topic: str) -> TopicStatus:
        """Return the state of a topic."""

    def dead_letters(self, topic: str) -> Iterator[DeadLetter]:
        """Yield the dead letters of a topic, oldest first."""

    def replay(self, topic: str) -> int:
        """Put complete dead letters back on their topic as new entries; return how many."""


@runtime_checkable
class RemoteBus(Bus, Protocol):
    """A bus on a server, with a spool in front for the time the server does not answer."""

    def ping(self) -> str:
        """Return the address of the server once it answers; raises TransientError or ConfigError."""

    def measure(self, topic: str) -> TopicStatus:
        """Return the state of a topic; raises TransientError if the server does not answer."""

    def uncounted(self, topic: str) -> int:
        """Return how many entries were removed unread and not counted by a claim."""

    def spilled(self) -> int:
        """Return the number of files in the spool, over all topics."""

    def catch_up(self, limit: int | None = None, on_forwarded: Callable[[int], None] = lambda _: None) -> int:
        """Forward at most ``limit`` files of the spool; return how many. Raises TransientError as ``measure`` does."""
