"""A bus for times when Redis is away: everything is put down in the spool first and forwarded from there.

What the spool holds goes to Redis in order before anything newer, so whatever was spilled comes first; a file is
removed once the server has answered for all its lines. Killed in between, lines are there twice, and consumers know
them by their id; they are never lost. Files that a person dropped into the spool, or that lie there from before there
was Redis, take the same way.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from itertools import islice
from pathlib import Path

from simic.bus.codec import MAX_PAYLOAD_BYTES
from simic.bus.protocol import BusCounters, DeadLetter, Delivery, TopicStatus
from simic.bus.redis_streams import RedisStreamsBus
from simic.bus.spool import SpoolBus, check_name, spill_lock
from simic.contracts.errors import ContractViolation, TransientError
from simic.runtime.locks import exclusive

__all__ = ["SpillingBus"]

_LOG = logging.getLogger(__name__)
_LOCK_WAIT_S = 10.0
RETRY_AFTER_S = 5.0
"""While Redis is known to be away, puts go to the spool at once and ask again no more often than this."""
_DIGITS = 20
_NAME_LIMIT = 96


class SpillingBus:
    """Redis, with a spool in front that is empty while Redis is there."""

    def __init__(
        self, spool: SpoolBus, stream: RedisStreamsBus, locks: Path, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self._spool, self.stream, self._locks, self._monotonic = spool, stream, locks, monotonic
        self._away_until: float | None = None

    def put(self, topic: str, name: str, lines: Iterable[bytes]) -> str:
        """Durable in the spool when this returns or raises ConfigError, and on Redis too unless it is away; nothing is
        published of lines that end with an error."""
        check_name(name)
        self._spool.put(topic, self._next_name(topic, name), map(_short_enough, lines))
        if self._away_until is None or self._monotonic() >= self._away_until:
            try:
                self.catch_up()
                self._away_until = None
            except TransientError as error:
                self._away_until = self._monotonic() + RETRY_AFTER_S
                _LOG.warning("%s waits in the spool and will follow by itself: %s", name, error)
        return f"redis/{topic}"

    def catch_up(self, limit: int | None = None, on_forwarded: Callable[[int], None] = lambda _: None) -> int:
        """Forwards what the spool holds, each topic's oldest first; returns how many files, at most ``limit``. Raises
        TransientError while Redis is away. What another process is just forwarding is left to it."""
        forwarded = 0
        for topic in self._spool.topics():
            left = None if limit is None else limit - forwarded
            forwarded += self._forward(topic, left, on_forwarded)
        return forwarded

    def spilled(self) -> int:
        """Files of all topics that wait in the spool."""
        return sum(self._spool.pending(topic) for topic in self._spool.topics())

    def _forward(self, topic: str, limit: int | None, on_forwarded: Callable[[int], None]) -> int:
        with ExitStack() as stack:
            try:
                stack.enter_context(exclusive(spill_lock(self._locks, topic), f"forwarding {topic}", _LOCK_WAIT_S))
            except TransientError as error:
                _LOG.warning("left to the next: %s", error)
                return 0
            forwarded = 0
            for delivery in islice(self._spool.claim(topic), limit):
                self.stream.forward(topic, _plain_name(delivery.source), delivery.open(MAX_PAYLOAD_BYTES))
                self._spool.discard(delivery)
                forwarded += 1
                on_forwarded(1)
            return forwarded

    def claim(self, topic: str) -> Iterator[Delivery]:
        """What was spilled, on whatever topic, joins its stream first."""
        self.catch_up()
        yield from self.stream.claim(topic)

    def ack(self, delivery: Delivery) -> None:
        """On Redis."""
        self.stream.ack(delivery)

    def pending(self, topic: str) -> int:
        """On Redis and in the spool."""
        return self._spool.pending(topic) + self.stream.pending(topic)

    def counters(self, topic: str) -> BusCounters:
        """Of Redis."""
        return self.stream.counters(topic)

    def status(self, topic: str) -> TopicStatus:
        """Of Redis, and how many files wait for it."""
        return self.stream.status(topic)._replace(spilled=self._spool.pending(topic))

    def dead_letters(self, topic: str) -> Iterator[DeadLetter]:
        """On Redis."""
        return self.stream.dead_letters(topic)

    def replay(self, topic: str) -> int:
        """On Redis."""
        return self.stream.replay(topic)

    def _next_name(self, topic: str, name: str) -> str:
        """Names sort in the order of these calls, whatever the clock does while anything waits."""
        newest = self._spool.newest(topic) or ""
        last = int(newest[:_DIGITS]) if newest[:_DIGITS].isdecimal() else 0
        return f"{max(time.time_ns(), last + 1):0{_DIGITS}d}.{name[:_NAME_LIMIT]}"


def _short_enough(line: bytes) -> bytes:
    if len(line) > MAX_PAYLOAD_BYTES:
        raise ContractViolation(f"a line of {len(line)} bytes exceeds {MAX_PAYLOAD_BYTES}")
    return line


def _plain_name(source: str) -> str:
    """Without the order in front and the ending."""
    order, _, rest = source.partition(".")
    return (rest if order.isdecimal() and rest else source).partition(".jsonl")[0][:128]
