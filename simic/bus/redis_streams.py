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
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import redis

from simic.bus.connection import RedisServer
from simic.bus.dead_letters import DeadLetters, Death, DeathReason
from simic.bus.entries import Entry, envelope_of, is_expired, key_of, line_of, pack_command, place_of, wrapper
from simic.bus.outgoing import Outgoing
from simic.bus.protocol import BusCounters, DeadLetter, Delivery, Line, TopicStatus
from simic.bus.spool import check_name, check_topic
from simic.bus.upkeep import settle_gap, trim
from simic.contracts.config import BusConfig
from simic.contracts.envelope import EventEnvelope
from simic.contracts.errors import ContractViolation, TransientError
from simic.runtime.clock import Clock, utc_now

__all__ = ["GROUP", "RedisStreamsBus"]

_LOG = logging.getLogger(__name__)
GROUP = "simic-trainer"


@dataclass(frozen=True)
class StreamDelivery(Delivery):
    """Knows the entries it is made of."""

    entries: tuple[bytes, ...] = ()


@dataclass
class _Tally:
    """Of the newest claim of a topic."""

    retried: int = 0
    reclaimed: int = 0
    dead_lettered: int = 0
    lost: int = 0


class RedisStreamsBus:
    """Bus on a Redis server, for one consumer that its name tells apart from others of the group."""

    def __init__(self, server: RedisServer, config: BusConfig, consumer: str, clock: Clock = utc_now) -> None:
        self._server, self._config, self._consumer, self._clock = server, config, consumer, clock
        self._tallies: dict[str, _Tally] = {}
        self._in_hand: dict[str, set[bytes]] = {}
        """Entries of the newest claim that were delivered and not acknowledged yet; as many as the consumer holds."""

    # -- producing ----------------------------------------------------------------------------------

    def put(self, topic: str, name: str, lines: Iterable[bytes]) -> str:
        """Adds an entry per line, once all lines are there; returns the stream's name as a source.

        Put again, or in part because the server went away, lines are there twice: consumers know them by their id.
        """
        check_topic(topic)
        check_name(name)
        wrap = wrapper(topic, name, self._clock(), self._config.ttl_s)
        with Outgoing(topic) as outgoing:
            for line in lines:
                outgoing.add(wrap(line))
            self._ensure_group(topic)
            outgoing.send(self._server)
        return f"redis/{topic}"

    def forward(self, topic: str, name: str, lines: Iterable[Line]) -> None:
        """Adds what another bus held, broken lines too; a line that cannot travel becomes a dead letter."""
        now = self._clock()
        wrap = wrapper(topic, name, now, self._config.ttl_s)
        self._ensure_group(topic)
        with Outgoing(topic) as outgoing:
            for line in lines:
                try:
                    outgoing.add(wrap(line.data))
                except ContractViolation as error:
                    fields = {b"payload": line.data, b"correlation_id": name.encode()}
                    message = f"line {line.number} of {name}: {error}"
                    self._bury(topic, [Death(b"0-1", fields, DeathReason.MALFORMED, message, 0)])
            outgoing.send(self._server)

    # -- consuming ----------------------------------------------------------------------------------

    def claim(self, topic: str) -> Iterator[Delivery]:
        """Own leftovers, those of consumers long idle, then what was new when this began; with ``block_ms`` all that
        is new, until nothing came for so long."""
        check_topic(topic)
        self._tallies[topic] = _Tally()
        self._in_hand[topic] = set()
        self._ensure_group(topic)
        self._take_over(topic)
        yield from self._leftovers(topic)
        interruptions = self._server.interruptions
        yield from self._news(topic)
        if self._server.interruptions != interruptions:
            yield from self._leftovers(topic)  # an answer that never came left its entries pending
        with suppress(TransientError):  # housekeeping, which the next claim does as well
            if gap := settle_gap(self._server, topic, GROUP):
                self._tallies[topic].lost += gap
                _LOG.error("%d entries of %s were trimmed before they were delivered and are LOST", gap, topic)
            if self._config.keep_s is not None:
                trim(self._server, topic, self._config.keep_s)

    def ack(self, delivery: Delivery) -> None:
        """Its entries are done with; acknowledging twice changes nothing."""
        if not isinstance(delivery, StreamDelivery):
            raise ContractViolation(f"{delivery.source} was not delivered by Redis")
        if delivery.entries:
            self._server.call(
                f"acknowledge {len(delivery.entries)} entries of {delivery.topic}",
                lambda client: client.xack(delivery.topic, GROUP, *delivery.entries),
            )
            self._in_hand[delivery.topic].difference_update(delivery.entries)

    def pending(self, topic: str) -> int:
        """Deliveries of full size that the entries not yet acknowledged make."""
        status = self.status(topic)
        return -(-(status.undelivered + status.pending) // self._config.batch)

    def counters(self, topic: str) -> BusCounters:
        """Of entries."""
        tally = self._tallies.get(topic, _Tally())
        lag = None
        with suppress(TransientError):
            status = self.status(topic)
            lag = status.undelivered + status.pending
        return BusCounters(tally.retried, tally.reclaimed, tally.dead_lettered, tally.lost, lag)

    def status(self, topic: str) -> TopicStatus:
        """Of entries."""
        check_topic(topic)
        length = self._server.call(f"look at {topic}", lambda client: int(client.xlen(topic)))
        group = self._group(topic)
        if group is None:
            undelivered, pending = length, 0
        else:
            # The server does not know how many wait when entries were deleted among them: then all may.
            undelivered = length if group["lag"] is None else int(group["lag"])
            pending = int(group["pending"])
        dead = self._letters(topic).count()
        return TopicStatus(topic, f"redis {self._server.address}", length, undelivered, pending, dead, 0)

    def dead_letters(self, topic: str) -> Iterator[DeadLetter]:
        """Oldest first."""
        return self._letters(topic).read()

    def replay(self, topic: str) -> int:
        """Puts whole dead letters back as if new; returns how many."""
        return self._letters(topic).replay(self._clock())

    def _letters(self, topic: str) -> DeadLetters:
        check_topic(topic)
        return DeadLetters(self._server, topic, GROUP, self._config.dead_letters)

    # -- reading ------------------------------------------------------------------------------------

    def _ensure_group(self, topic: str) -> None:
        def create(client: redis.Redis) -> None:
            # A group on a new stream has read nothing of it; on an old one the server has to find out by itself.
            is_new = not client.exists(topic)
            try:
                client.xgroup_create(topic, GROUP, "0", mkstream=True, entries_read=0 if is_new else None)
            except redis.ResponseError as error:
                if not str(error).startswith("BUSYGROUP"):  # else it is there already
                    raise

        self._server.call(f"make the group {GROUP} of {topic}", create)

    def _group(self, topic: str) -> dict[str, Any] | None:
        def look(client: redis.Redis) -> Sequence[dict[str, Any]]:
            return client.xinfo_groups(topic) if client.exists(topic) else ()

        groups = self._server.call(f"look at the groups of {topic}", look)
        return next((group for group in groups if group["name"] == GROUP.encode()), None)

    def _news(self, topic: str) -> Iterator[Delivery]:
        end = key_of(self._last_id(topic))
        while end > (0, 0) or self._config.block_ms:
            entries = self._read_new(topic)
            if not entries:
                return
            yield from self._deliver(topic, entries, attempt=1)
            if not self._config.block_ms and key_of(entries[-1][0]) >= end:
                return

    def _last_id(self, topic: str) -> bytes:
        def look(client: redis.Redis) -> bytes:
            return bytes(client.xinfo_stream(topic)["last-generated-id"])

        return self._server.call(f"look at {topic}", look)

    def _read_new(self, topic: str) -> list[Entry]:
        config = self._config

        def read(client: redis.Redis) -> Any:
            # No block at all for 0, which would be one without end.
            return client.xreadgroup(GROUP, self._consumer, {topic: ">"}, config.batch, config.block_ms or None)

        answer = self._server.call(f"read {topic}", read)
        return list(answer[0][1]) if answer else []

    def _take_over(self, topic: str) -> None:
        """Entries of consumers idle for too long become ours; their number of attempts stays."""
        config, others = self._config, self._pending_of_others(topic)
        if others == 0:
            return
        idle_ms, cursor, trimmed = int(config.reclaim_idle_s * 1000), b"0-0", 0
        while True:
            command = pack_command([
                b"XAUTOCLAIM", topic.encode(), GROUP.encode(), self._consumer.encode(), b"%d" % idle_ms, cursor,
                b"COUNT", b"%d" % config.batch, b"JUSTID",
            ])  # fmt: skip
            ((cursor, _, gone),) = self._server.send(f"reclaim {topic}", command)
            trimmed += len(gone)
            self._lose(topic, gone)
            if cursor == b"0-0":
                break
        self._tallies[topic].reclaimed += max(0, others - self._pending_of_others(topic) - trimmed)

    def _pending_of_others(self, topic: str) -> int:
        summary = self._server.call(f"look at {topic}", lambda client: client.xpending(topic, GROUP))
        return sum(row["pending"] for row in summary["consumers"] if row["name"] != self._consumer.encode())

    def _leftovers(self, topic: str) -> Iterator[Delivery]:
        """Entries pending here that are not in hand, each with one more attempt."""
        config, start = self._config, "-"
        while True:
            rows = self._pending_from(topic, start)
            counts = {
                row["message_id"]: int(row["times_delivered"])
                for row in rows
                if row["message_id"] not in self._in_hand[topic]
            }
            self._give_up(topic, {entry: n for entry, n in counts.items() if n >= config.max_attempts})
            for attempt in range(2, config.max_attempts + 1):
                ids = [entry for entry, n in counts.items() if n == attempt - 1]
                for group in [[entry] for entry in ids] if attempt == config.max_attempts else [ids]:
                    entries = self._claim_again(topic, group, attempt)
                    yield from self._deliver(topic, entries, attempt)
            if len(rows) < config.batch:
                return
            start = "(" + rows[-1]["message_id"].decode()

    def _pending_from(self, topic: str, start: str) -> list[dict[str, Any]]:
        return self._server.call(
            f"read what is pending of {topic}",
            lambda client: client.xpending_range(topic, GROUP, start, "+", self._config.batch, self._consumer),
        )

    def _claim_again(self, topic: str, ids: Sequence[bytes], attempt: int) -> list[Entry]:
        """Notes the attempt and returns them; what is gone from the stream is lost."""
        if not ids:
            return []

        def claim(client: redis.Redis) -> Any:
            return client.xclaim(topic, GROUP, self._consumer, 0, list(ids), retrycount=attempt)

        answer = self._server.call(f"read {topic} again", claim)
        entries = [entry for entry in answer if entry[0] is not None and entry[1] is not None]
        missing = set(ids) - {entry[0] for entry in entries}
        if missing:  # acknowledged meanwhile, perhaps
            self._lose(topic, missing - {entry[0] for entry in self._fetch(topic, sorted(missing))})
        self._tallies[topic].retried += len(entries)
        return entries

    def _fetch(self, topic: str, ids: Sequence[bytes]) -> list[Entry]:
        """Those of the entries that are still in the stream."""

        def fetch(client: redis.Redis) -> list[Entry]:
            with client.pipeline(transaction=False) as pipe:
                for entry in ids:
                    pipe.xrange(topic, entry, entry)
                return [entry for found in pipe.execute() for entry in found]

        return self._server.call(f"read {topic}", fetch)

    # -- what becomes of entries --------------------------------------------------------------------

    def _deliver(self, topic: str, entries: Sequence[Entry], attempt: int) -> Iterator[Delivery]:
        """Deliveries of the entries that may be delivered, urgent ones first; the others become dead letters."""
        now, good, deaths = self._clock(), [], []
        for entry, fields in entries:
            if fields is None:
                self._lose(topic, [entry])
                continue
            try:
                envelope, place = envelope_of(fields), place_of(topic, entry)
            except ContractViolation as error:
                deaths.append(Death(entry, fields, DeathReason.MALFORMED, str(error), attempt))
                continue
            if is_expired(envelope, now):
                message = f"created at {envelope.created_at.isoformat()}, to live {envelope.ttl_s} s"
                deaths.append(Death(entry, fields, DeathReason.EXPIRED, message, attempt))
            elif (made := envelope.attempt - 1 + attempt) > envelope.max_attempts:
                message = f"attempt {made} of {envelope.max_attempts}"
                deaths.append(Death(entry, fields, DeathReason.ATTEMPTS, message, attempt))
            else:
                good.append((entry, place, envelope))
        self._bury(topic, deaths)
        good.sort(key=lambda item: item[2].priority)
        for source, group in groupby(good, key=lambda item: item[1].source):
            items = list(group)
            ids = tuple(entry for entry, _, _ in items)
            self._in_hand[topic].update(ids)
            reader = _Reader(topic, [(place.line, envelope) for _, place, envelope in items])
            yield StreamDelivery(topic, source, reader, attempt > 1, ids)

    def _give_up(self, topic: str, counts: dict[bytes, int]) -> None:
        """Entries delivered as often as may be; their bytes are read without another attempt."""
        if not counts:
            return
        entries = dict(self._fetch(topic, list(counts)))
        self._lose(topic, counts.keys() - entries.keys())
        deaths = [
            Death(entry, fields, DeathReason.ATTEMPTS, f"never acknowledged in {counts[entry]} attempts", counts[entry])
            for entry, fields in entries.items()
            if fields is not None
        ]
        self._bury(topic, deaths)

    def _bury(self, topic: str, deaths: Sequence[Death]) -> None:
        if not deaths:
            return
        dead_letters = self._letters(topic)
        evicted = dead_letters.bury(deaths, self._clock())
        tally = self._tallies.setdefault(topic, _Tally())
        tally.dead_lettered += len(deaths)
        tally.lost += evicted
        first = deaths[0]
        _LOG.warning(
            "%d entries of %s are dead letters now, the first %s for %s (%s); `simic bus dead-letters` lists them",
            len(deaths), topic, first.entry_id.decode(), first.reason.value, first.message,
        )  # fmt: skip
        if evicted:
            _LOG.error("%s is full: %d old letters had to leave and are lost", dead_letters.key, evicted)

    def _lose(self, topic: str, ids: Iterable[bytes]) -> None:
        """Entries that were trimmed while they were pending: nothing is left of them but their ids."""
        gone = sorted(ids)
        if gone:
            self._server.call(f"acknowledge lost entries of {topic}", lambda client: client.xack(topic, GROUP, *gone))
            self._tallies[topic].lost += len(gone)
            text = "%d entries of %s were trimmed while pending and are LOST, the first %s"
            _LOG.error(text, len(gone), topic, gone[0].decode())


class _Reader:
    """Opens a delivery's lines from the beginning."""

    def __init__(self, topic: str, items: Sequence[tuple[int, EventEnvelope]]) -> None:
        self._topic, self._items = topic, items

    def __call__(self, max_line_bytes: int) -> Iterator[Line]:
        for number, envelope in self._items:
            yield line_of(self._topic, number, envelope, max_line_bytes)
