"""What a transport promises: at least once, in batches of lines, acknowledged by the consumer."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple, Protocol

__all__ = [
    "FIELD_REPORTS",
    "POLICY_UPDATES",
    "Bus",
    "BusCounters",
    "DeadLetter",
    "Defect",
    "Delivery",
    "Line",
    "TopicStatus",
]

FIELD_REPORTS = "tamiyo.field_reports"
"""Topic: one ``FieldReport`` a line."""
POLICY_UPDATES = "innovation.policy"
"""Topic: one ``EventEnvelope`` around a ``PolicyUpdate`` a line."""


class Defect(str, Enum):
    """Why a line is not whole."""

    TOO_LONG = "too_long"
    """Longer than the reader's limit; ``data`` holds its beginning."""
    TORN = "torn"
    """The source ended or turned unreadable here; ``data`` holds what could still be read of the line."""


class Line(NamedTuple):
    """One line of a delivery."""

    number: int
    """From 1, blank lines counted; of a stream, the number of the entry (``simic.bus.entries.place_of``)."""
    data: bytes
    """Without its line end; never longer than the reader's limit."""
    defect: Defect | None


@dataclass(frozen=True)
class Delivery:
    """Lines that belong together; delivered again until acknowledged."""

    topic: str
    source: str
    """Names the delivery; the same on every redelivery."""
    open: Callable[[int], Iterator[Line]]
    """``open(max_line_bytes)`` reads the lines from the beginning in constant memory, blank ones left out."""
    alone: bool = False
    """An earlier attempt was never acknowledged: make what came before durable first, and then this by itself, so that
    lines which cannot be handled do not take others down with them."""


class BusCounters(NamedTuple):
    """What befell a topic since its newest claim began, in files of the spool or entries of a stream."""

    retried: int
    """Delivered again, because nobody acknowledged them before."""
    reclaimed: int
    """Taken over from a consumer that kept them for too long."""
    dead_lettered: int
    """Put on the dead-letter stream: not an envelope, expired, or tried too often."""
    lost: int
    """Gone before they could be delivered or acknowledged: somebody trimmed the stream."""
    lag: int | None
    """Not yet delivered, or not yet acknowledged, at this moment; None if the bus cannot be asked."""


class TopicStatus(NamedTuple):
    """A topic as an operator sees it."""

    topic: str
    transport: str
    """``spool <directory>`` or ``redis <host>:<port>/<database>``."""
    length: int | None
    """Entries of the stream, acknowledged ones among them; files of the spool that wait. None, as the next three, while
    Redis is away."""
    undelivered: int | None
    pending: int | None
    """Delivered and not acknowledged."""
    dead_letters: int | None
    spilled: int
    """Files that wait in the spool for Redis to be back."""


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
    """Nothing was cut off, so it can be put back."""
    fields: dict[bytes, bytes]
    """Those of the entry."""

    @property
    def raw(self) -> bytes:
        """The payload, or all there was."""
        return self.fields.get(b"payload") or b" ".join(part for pair in self.fields.items() for part in pair)


class Bus(Protocol):
    """A transport."""

    def put(self, topic: str, name: str, lines: Iterable[bytes]) -> str:
        """Durably publishes lines, each without a line end, and returns their source."""

    def claim(self, topic: str) -> Iterator[Delivery]:
        """Deliveries of this consumer: first those claimed before and never acknowledged, then new ones."""

    def ack(self, delivery: Delivery) -> None:
        """The effect of the delivery is durable: do not deliver it again."""

    def pending(self, topic: str) -> int:
        """Deliveries not yet acknowledged."""

    def counters(self, topic: str) -> BusCounters:
        """Since the newest claim of this topic; never fails."""

    def status(self, topic: str) -> TopicStatus:
        """Now."""

    def dead_letters(self, topic: str) -> Iterator[DeadLetter]:
        """Oldest first."""

    def replay(self, topic: str) -> int:
        """Puts whole dead letters back on their topic as if new; returns how many."""
