"""What a transport promises: at least once, in batches of lines, acknowledged by the consumer."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple, Protocol

__all__ = ["FIELD_REPORTS", "POLICY_UPDATES", "Bus", "Defect", "Delivery", "Line"]

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
    """From 1, blank lines counted."""
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
