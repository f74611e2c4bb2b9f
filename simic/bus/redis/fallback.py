"""Redis with the spool as fallback: lines are written to the spool first and forwarded from there.

Files of the spool are forwarded in order, before anything newer. A file is removed once the server has answered for
all its lines. A process that is killed in between leaves lines twice, never none; consumers recognise them by their
id. Files that a person put into the spool are forwarded as well. A file with a line that is too long for an entry moves
to ``aside`` instead.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from itertools import islice
from pathlib import Path

from simic.bus.codec import MAX_PAYLOAD_BYTES
from simic.bus.protocol import BusCounters, DeadLetter, Defect, Delivery, Line, TopicStatus
from simic.bus.redis.bus import RedisStreamsBus
from simic.bus.spool.bus import SpoolBus, StuckDelivery, check_name, spill_lock
from simic.contracts.errors import ContractError, TransientError
from simic.runtime.locks import exclusive

__all__ = ["SpoolFallbackBus"]

_LOG = logging.getLogger(__name__)
_LOCK_WAIT_S = 10.0
RETRY_AFTER_S, LONGEST_PAUSE_S = 5.0, 300.0
"""While Redis does not answer, puts go to the spool at once and try Redis again after a pause. The pause doubles with
each attempt up to the second value, because an attempt may take as long as ``bus.deadline_s``."""
_DIGITS = 20
_NAME_LIMIT = 96


class SpoolFallbackBus:
    """Redis behind a spool, which is empty while Redis answers."""

    def __init__(
        self,
        spool: SpoolBus,
        stream: RedisStreamsBus,
        locks: Path,
        monotonic: Callable[[], float] = time.monotonic,
        *,
        is_renewed: bool = True,
    ) -> None:
        """Open both; ``is_renewed`` says whether a Redis that used up the deadline is asked again after a pause.

        A command waits for it only once; a producer that lives for days returns to it.
        """
        self._spool, self.stream, self._locks, self._monotonic = spool, stream, locks, monotonic
        self._is_renewed = is_renewed
        self._away_until: float | None = None
        self._pause_s = RETRY_AFTER_S

    def put(self, topic: str, name: str, lines: Iterable[bytes]) -> str:
        """Write lines durably to the spool, and forward them unless Redis does not answer.

        They are in the spool when this returns or raises ConfigError. If ``lines`` raises, none is published.
        """
        check_name(name)
        self._spool.put(topic, self._next_name(topic, name), map(_short_enough, lines), correlation_id=name)
        if self._away_until is None or self._monotonic() >= self._away_until:
            if self._away_until is not None and self._is_renewed:
                self.stream.renew()
            try:
                self.catch_up()
                self._away_until, self._pause_s = None, RETRY_AFTER_S
            except TransientError as error:
                self._away_until = self._monotonic() + self._pause_s
                self._pause_s = min(2.0 * self._pause_s, LONGEST_PAUSE_S)
                _LOG.warning("%s waits in the spool and will follow by itself: %s", name, error)
        return f"redis/{topic}"

    def catch_up(self, limit: int | None = None, on_forwarded: Callable[[int], None] = lambda _: None) -> int:
        """Forward at most ``limit`` files of the spool, each topic's oldest first; return how many.

        A topic that another process is forwarding is skipped.

        Raises:
            TransientError: Redis does not answer.
        """
        forwarded = 0
        for topic in self._spool.topics():
            left = None if limit is None else limit - forwarded
            forwarded += self._forward(topic, left, on_forwarded)
        return forwarded

    def spilled(self) -> int:
        """Return the number of files in the spool, over all topics."""
        return sum(self._spool.pending(topic) for topic in self._spool.topics())

    def _forward(self, topic: str, limit: int | None, on_forwarded: Callable[[int], None]) -> int:
        with ExitStack() as stack:
            try:
                stack.enter_context(exclusive(spill_lock(self._locks, topic), f"forwarding {topic}", _LOCK_WAIT_S))
            except TransientError as error:
                _LOG.warning("left to the next: %s", error)
                return 0
            forwarded = 0
            for delivery in islice(self._movable(topic), limit):
                self.stream.forward(topic, _plain_name(delivery.source), _lines_of(delivery))
                self._spool.discard(delivery)
                forwarded += 1
                on_forwarded(1)
            return forwarded

    def _movable(self, topic: str) -> Iterator[Delivery]:
        """Yield files that can be forwarded. The others stay: every put would make a dead letter of each."""
        for delivery in self._spool.claim(topic):
            if not isinstance(delivery, StuckDelivery):
                yield delivery
                continue
            for line in delivery.open(MAX_PAYLOAD_BYTES):
                _LOG.warning("%s of %s is not forwarded: %s; move it by hand", delivery.source, topic, line.note)

    def claim(self, topic: str) -> Iterator[Delivery]:
        """Forward the files of every topic, then yield deliveries from Redis."""
        self.catch_up()
        yield from self.stream.claim(topic)

    def ack(self, delivery: Delivery) -> None:
        """Acknowledge a delivery on Redis."""
        self.stream.ack(delivery)

    def pending(self, topic: str) -> int:
        """Return the number of deliveries on Redis and in the spool."""
        return self._spool.pending(topic) + self.stream.pending(topic)

    def counters(self, topic: str) -> BusCounters:
        """Return the counters of Redis."""
        return self.stream.counters(topic)

    def status(self, topic: str) -> TopicStatus:
        """Return the state on Redis, with the numbers of files that wait for it and of files set aside."""
        aside = len(self._spool.set_aside(topic))
        return self.stream.status(topic)._replace(spilled=self._spool.pending(topic), aside=aside)

    def ping(self) -> str:
        """Return the address of Redis once it answers."""
        return self.stream.ping()

    def measure(self, topic: str) -> TopicStatus:
        """Return the state on Redis, with the number of files that wait for it; raises TransientError without Redis."""
        return self.stream.measure(topic)._replace(spilled=self._spool.pending(topic))

    def uncounted(self, topic: str) -> int:
        """Return how many entries were trimmed unread and not counted by a claim."""
        return self.stream.uncounted(topic)

    def dead_letters(self, topic: str) -> Iterator[DeadLetter]:
        """Yield dead letters on Redis."""
        return self.stream.dead_letters(topic)

    def replay(self, topic: str) -> int:
        """Put dead letters back on Redis."""
        return self.stream.replay(topic)

    def _next_name(self, topic: str, name: str) -> str:
        """Return a name that sorts after every waiting file, even if the clock was set back."""
        newest = self._spool.newest(topic) or ""
        last = int(newest[:_DIGITS]) if newest[:_DIGITS].isdecimal() else 0
        return f"{max(time.time_ns(), last + 1):0{_DIGITS}d}.{name[:_NAME_LIMIT]}"


def _short_enough(line: bytes) -> bytes:
    if len(line) > MAX_PAYLOAD_BYTES:
        raise ContractError(f"a line of {len(line)} bytes exceeds {MAX_PAYLOAD_BYTES}")
    return line


def _lines_of(delivery: Delivery) -> Iterator[Line]:
    """Yield the lines, and have the file kept if one is too long for an entry: its note says where the file lies."""
    for line in delivery.open(MAX_PAYLOAD_BYTES):
        if line.defect is Defect.TOO_LONG and delivery.abandon is not None:
            delivery.abandon()
            place = f"{delivery.topic}/aside/{delivery.source}"
            line = line._replace(
                note=f"expected at most {MAX_PAYLOAD_BYTES} bytes, which an entry of Redis carries, found more; its "
                f"file is set aside as {place}: shorten the line, or ingest the file without REDIS_URL"
            )
        yield line


def _plain_name(source: str) -> str:
    """Return a source without its order prefix and its ending."""
    order, _, rest = source.partition(".")
    return (rest if order.isdecimal() and rest else source).partition(".jsonl")[0][:128]
