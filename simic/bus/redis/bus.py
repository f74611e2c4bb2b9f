"""The bus on Redis Streams: a topic is a stream, ``simic-trainer`` the group that reads it.

An entry is in one of these states, and moves on by one atomic command of the server::

    new  --XREADGROUP-->  pending  --XACK-->  acknowledged  --XTRIM, once old-->  gone
                             |-- delivered too often, expired, no envelope: MULTI XADD <topic>.dead, XACK
                             `-- its consumer was idle for too long: XAUTOCLAIM, then pending here

A delivery is what one read returned, at most ``batch`` entries. An entry that was delivered and not acknowledged comes
again in a delivery that is to be made durable by itself, and the last time in one of its own: whatever brings its
consumers down takes nothing else to the dead letters. The server's delivery count is the number of attempts.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import groupby

from simic.bus.protocol import BusCounters, DeadLetter, Defect, Delivery, Line, TopicStatus
from simic.bus.redis.connection import RedisServer
from simic.bus.redis.dead_letters import DeadEntry, DeadLetters, DeathReason
from simic.bus.redis.entries import Entry, StreamWriter, envelope_of, is_expired, key_of, line_of, location_of, wrapper
from simic.bus.redis.maintenance import CONSUMER_REST_S, find_gap, forget_consumers, settle_gap, trim
from simic.bus.redis.stream import GROUP, GroupStream
from simic.bus.spool.bus import check_name, check_topic
from simic.contracts.envelope import EventEnvelope
from simic.contracts.errors import ContractError, SimicError, TransientError
from simic.contracts.settings.run import BusConfig
from simic.runtime.clock import Clock, utc_now

__all__ = ["RedisStreamsBus"]

_LOG = logging.getLogger(__name__)


_UNDELIVERABLE = frozenset({Defect.TOO_LONG, Defect.UNREADABLE, Defect.GIVEN_UP})
"""Defects of lines that have no content, or not all of it; an entry would pass the beginning of a line off as whole."""


@dataclass(frozen=True)
class StreamDelivery(Delivery):
    """A delivery of entries of a stream."""

    entries: tuple[bytes, ...] = ()


@dataclass
class _Tally:
    """Counts since the newest claim of a topic."""

    retried: int = 0
    reclaimed: int = 0
    dead_lettered: int = 0
    lost: int = 0


class RedisStreamsBus:
    """Bus on a Redis server for one named consumer of the group."""

    def __init__(self, server: RedisServer, config: BusConfig, consumer: str, clock: Clock = utc_now) -> None:
        self._server, self._config, self._consumer, self._clock = server, config, consumer, clock
        self._tallies: dict[str, _Tally] = {}
        self._in_hand: dict[str, set[bytes]] = {}
        """Entries of the newest claim that this consumer holds: delivered and not acknowledged."""

    # -- producing ----------------------------------------------------------------------------------

    def renew(self) -> None:
        """Ask a server again that used up the deadline of this conversation."""
        self._server.renew()

    def put(self, topic: str, name: str, lines: Iterable[bytes]) -> str:
        """Add an entry per line, once all lines are known; return the stream's name as a source.

        A repeated or interrupted put leaves lines twice; consumers recognise them by their id.
        """
        check_topic(topic)
        check_name(name)
        wrap = wrapper(topic, name, self._clock(), self._config.ttl_s)
        with StreamWriter(topic) as writer:
            for line in lines:
                writer.add(wrap(line))
            self._stream(topic).ensure()
            writer.send(self._server)
        return f"redis/{topic}"

    def forward(self, topic: str, name: str, lines: Iterable[Line]) -> None:
        """Add the lines of another bus, torn ones too; a line that cannot be an entry becomes a dead letter.

        A dead letter holds at most the beginning of a long line, so its caller keeps the source. The correlation id is
        that of a line's envelope, or ``name``. The time to live begins now: the server was away.
        """
        now = self._clock()
        wraps: dict[str, Callable[[bytes], list[bytes]]] = {}
        self._stream(topic).ensure()
        with StreamWriter(topic) as writer:
            for line in lines:
                sent = (line.envelope.correlation_id if line.envelope is not None else None) or name
                if sent not in wraps:
                    wraps[sent] = wrapper(topic, sent, now, self._config.ttl_s)
                try:
                    if line.defect in _UNDELIVERABLE:
                        raise ContractError(line.note or line.defect.value)
                    writer.add(wraps[sent](line.data))
                except ContractError as error:
                    fields = {b"payload": line.data, b"correlation_id": sent.encode()}
                    message = f"line {line.number} of {name}: {error}"
                    self._move_to_dead_letters(topic, [DeadEntry(b"0-1", fields, DeathReason.MALFORMED, message, 0)])
            writer.send(self._server)

    # -- consuming ----------------------------------------------------------------------------------

    def claim(self, topic: str) -> Iterator[Delivery]:
        """Yield own unacknowledged entries, those of idle consumers, then entries that were new when this began.

        With ``block_ms`` it yields all new entries, until none came for so long.
        """
        check_topic(topic)
        self._tallies[topic] = _Tally()
        self._in_hand[topic] = set()
        stream = self._stream(topic)
        stream.ensure()
        self._take_over(stream)
        yield from self._leftovers(stream)
        interruptions = self._server.interruptions
        yield from self._news(stream)
        if self._server.interruptions != interruptions:
            yield from self._leftovers(stream)  # if the answer never arrived, the entries stayed pending
        with suppress(TransientError):  # housekeeping, which the next claim does as well
            if gap := settle_gap(self._server, topic, GROUP):
                self._tallies[topic].lost += gap
                _LOG.error("%d entries of %s were trimmed before they were delivered and are LOST", gap, topic)
            forget_consumers(self._server, topic, GROUP, self._consumer, CONSUMER_REST_S)
            if self._config.keep_s is not None:
                trim(self._server, topic, self._config.keep_s)

    def ack(self, delivery: Delivery) -> None:
        """Acknowledge the entries of a delivery; repeating it changes nothing."""
        if not isinstance(delivery, StreamDelivery):
            raise ContractError(f"{delivery.source} was not delivered by Redis")
        if delivery.entries:
            self._stream(delivery.topic).acknowledge(delivery.entries)
            self._in_hand.get(delivery.topic, set()).difference_update(delivery.entries)

    def pending(self, topic: str) -> int:
        """Return the number of full deliveries in the entries not yet acknowledged."""
        return -(-sum(self._stream(topic).waiting()) // self._config.batch)

    def counters(self, topic: str) -> BusCounters:
        """Return counters of entries."""
        tally = self._tallies.get(topic, _Tally())
        lag = None
        with suppress(SimicError):
            lag = sum(self._stream(topic).waiting())
        return BusCounters(tally.retried, tally.reclaimed, tally.dead_lettered, tally.lost, lag)

    def status(self, topic: str) -> TopicStatus:
        """Return the state in entries; the numbers are None while the server does not answer."""
        try:
            return self.measure(topic)
        except TransientError:
            return TopicStatus(topic, f"{self._transport} does not answer", None, None, None, None, spilled=0)

    def measure(self, topic: str) -> TopicStatus:
        """Return the state in entries; raises TransientError while the server does not answer."""
        check_topic(topic)
        stream = self._stream(topic)
        undelivered, pending = stream.waiting()
        letters = self._letters(topic).count()
        return TopicStatus(topic, self._transport, stream.length(), undelivered, pending, letters, spilled=0)

    def uncounted(self, topic: str) -> int:
        """Return how many entries were trimmed unread and not counted by a claim; 0 while some are left to read."""
        check_topic(topic)
        return find_gap(self._server, topic, GROUP)

    def ping(self) -> str:
        """Return the server's address once it answers; one attempt, raises TransientError or ConfigError."""
        self._server.call("ping Redis", lambda client: client.ping(), attempts=1)
        return self._server.address

    @property
    def _transport(self) -> str:
        return f"redis {self._server.address}"

    def dead_letters(self, topic: str) -> Iterator[DeadLetter]:
        """Yield the dead letters of a topic, oldest first."""
        return self._letters(topic).read()

    def replay(self, topic: str) -> int:
        """Put complete dead letters back as new entries; return how many."""
        return self._letters(topic).replay(self._clock())

    def _stream(self, topic: str) -> GroupStream:
        return GroupStream(self._server, topic, self._consumer, self._config.batch)

    def _letters(self, topic: str) -> DeadLetters:
        check_topic(topic)
        return DeadLetters(self._server, topic, GROUP, self._config.dead_letters)

    # -- reading ------------------------------------------------------------------------------------

    def _news(self, stream: GroupStream) -> Iterator[Delivery]:
        end, block_ms = stream.last_key(), self._config.block_ms
        while end > (0, 0) or block_ms:
            entries = stream.read_new(block_ms)
            if not entries:
                return
            yield from self._deliver(stream, entries, attempt=1)
            if not block_ms and key_of(entries[-1][0]) >= end:
                return

    def _take_over(self, stream: GroupStream) -> None:
        """Take over entries of idle consumers; their number of attempts stays."""
        others = stream.pending_of_others()
        if others:
            gone = stream.take_over(int(self._config.reclaim_idle_s * 1000))
            self._mark_lost(stream, gone)
            self._tallies[stream.topic].reclaimed += max(0, others - stream.pending_of_others() - len(gone))

    def _leftovers(self, stream: GroupStream) -> Iterator[Delivery]:
        """Yield own pending entries that this claim did not deliver yet, each with one more attempt."""
        last = self._config.max_attempts
        for page in stream.pending():
            counts = {entry: n for entry, n in page.items() if entry not in self._in_hand[stream.topic]}
            self._give_up(stream, {entry: n for entry, n in counts.items() if n >= last})
            for attempt in range(2, last + 1):
                ids = [entry for entry, n in counts.items() if n == attempt - 1]
                for group in [[entry] for entry in ids] if attempt == last else [ids]:
                    yield from self._deliver(stream, self._read_again(stream, group, attempt), attempt)

    def _read_again(self, stream: GroupStream, ids: Sequence[bytes], attempt: int) -> list[Entry]:
        """Return the entries that still exist; mark the others as lost."""
        entries = stream.read_again(ids, attempt)
        missing = set(ids) - {entry[0] for entry in entries}
        if missing:  # acknowledged meanwhile, perhaps
            self._mark_lost(stream, missing - {entry[0] for entry in stream.fetch(sorted(missing))})
        self._tallies[stream.topic].retried += len(entries)
        return entries

    # -- what becomes of entries --------------------------------------------------------------------

    def _deliver(self, stream: GroupStream, entries: Sequence[Entry], attempt: int) -> Iterator[Delivery]:
        """Yield deliveries of valid entries, urgent ones first; move the others to the dead letters."""
        topic, now, good, dead = stream.topic, self._clock(), [], []
        for entry, fields in entries:
            if fields is None:
                self._mark_lost(stream, [entry])
                continue
            try:
                envelope, place = envelope_of(fields), location_of(topic, entry)
            except ContractError as error:
                dead.append(DeadEntry(entry, fields, DeathReason.MALFORMED, str(error), attempt))
                continue
            if is_expired(envelope, now):
                message = f"created at {envelope.created_at.isoformat()}, to live {envelope.ttl_s} s"
                dead.append(DeadEntry(entry, fields, DeathReason.EXPIRED, message, attempt))
            elif (made := envelope.attempt - 1 + attempt) > envelope.max_attempts:
                message = f"attempt {made} of {envelope.max_attempts}"
                dead.append(DeadEntry(entry, fields, DeathReason.ATTEMPTS, message, attempt))
            else:
                good.append((entry, place, envelope))
        self._move_to_dead_letters(topic, dead)
        good.sort(key=lambda item: item[2].priority)
        for source, group in groupby(good, key=lambda item: item[1].source):
            items = list(group)
            ids = tuple(entry for entry, _, _ in items)
            self._in_hand[topic].update(ids)
            reader = _Reader(topic, [(place.line, envelope) for _, place, envelope in items])
            yield StreamDelivery(topic, source, reader, attempt > 1, entries=ids)

    def _give_up(self, stream: GroupStream, counts: dict[bytes, int]) -> None:
        """Move entries with the maximum number of deliveries to the dead letters."""
        if not counts:
            return
        entries = dict(stream.fetch(counts))
        self._mark_lost(stream, counts.keys() - entries.keys())
        dead = [
            DeadEntry(
                entry, fields, DeathReason.ATTEMPTS, f"never acknowledged in {counts[entry]} attempts", counts[entry]
            )
            for entry, fields in entries.items()
            if fields is not None
        ]
        self._move_to_dead_letters(stream.topic, dead)

    def _move_to_dead_letters(self, topic: str, dead: Sequence[DeadEntry]) -> None:
        if not dead:
            return
        dead_letters = self._letters(topic)
        evicted = dead_letters.move(dead, self._clock())
        tally = self._tallies.setdefault(topic, _Tally())
        tally.dead_lettered += len(dead)
        tally.lost += evicted
        first = dead[0]
        _LOG.warning(
            "%d entries of %s are dead letters now, the first %s for %s (%.512r); `simic bus dead-letters` lists them",
            len(dead), topic, first.entry_id.decode(), first.reason.value, first.message,
        )  # fmt: skip
        if evicted:
            _LOG.error("%s is full: %d old letters had to leave and are lost", dead_letters.key, evicted)

    def _mark_lost(self, stream: GroupStream, ids: Iterable[bytes]) -> None:
        """Count and acknowledge entries that were trimmed while pending; only their ids are left."""
        gone = sorted(ids)
        if gone:
            stream.acknowledge(gone)
            self._tallies[stream.topic].lost += len(gone)
            text = "%d entries of %s were trimmed while pending and are LOST, the first %s"
            _LOG.error(text, len(gone), stream.topic, gone[0].decode())


class _Reader:
    """Reads the lines of a delivery from the beginning."""

    def __init__(self, topic: str, items: Sequence[tuple[int, EventEnvelope]]) -> None:
        self._topic, self._items = topic, items

    def __call__(self, max_line_bytes: int) -> Iterator[Line]:
        for number, envelope in self._items:
            yield line_of(self._topic, number, envelope, max_line_bytes)
