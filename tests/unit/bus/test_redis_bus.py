"""Redis Streams: attempts, dead letters, what is lost and counted, what comes from hostile producers."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import redis
import zstandard
from hypothesis import given
from hypothesis import strategies as st
from support.servers.redis_buses import TOPIC, datas, drain, stream_bus
from support.servers.redis_server import RedisProcess

from simic.bus.protocol import Defect
from simic.bus.redis.bus import RedisStreamsBus
from simic.bus.redis.connection import RedisServer
from simic.bus.redis.dead_letters import RAW_LIMIT_BYTES
from simic.bus.redis.entries import envelope_of, fields_of, location_of, wrapper
from simic.bus.redis.maintenance import trim
from simic.bus.redis.stream import GROUP
from simic.contracts.envelope import EventEnvelope, Priority
from simic.contracts.errors import ConfigError, ContractError, TransientError
from simic.contracts.settings.run import BusConfig
from simic.runtime.clock import utc_now

NOW = datetime(2026, 5, 1, tzinfo=UTC)
DAY_S = 86_400


@pytest.fixture(scope="module")
def process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisProcess]:
    with RedisProcess(tmp_path_factory.mktemp("redis")) as running:
        yield running


@pytest.fixture
def server(process: RedisProcess) -> RedisProcess:
    process.client.flushall()
    return process


def entry(payload: bytes = b"{}", **changes: Any) -> dict[Any, Any]:
    """An entry as another producer would add it."""
    fields: dict[Any, Any] = {
        "event_id": "0" * 32, "type": "tamiyo.field_report", "source": "host-7",
        "created_at": utc_now().isoformat(), "payload": payload,
    }  # fmt: skip
    return {name: value for name, value in {**fields, **changes}.items() if value is not None}


def reasons(bus: RedisStreamsBus) -> list[tuple[str, bytes]]:
    return [(letter.reason, letter.raw) for letter in bus.dead_letters(TOPIC)]


# -- what travels -----------------------------------------------------------------------------------


@given(
    st.builds(
        EventEnvelope,
        event_id=st.just("ab" * 16),
        type=st.just("x.y"),
        source=st.text(min_size=1, max_size=20).filter(lambda text: text.isprintable()),
        created_at=st.datetimes(timezones=st.just(UTC)),
        ttl_s=st.integers(1, 30 * DAY_S),
        payload=st.binary(min_size=1, max_size=50).filter(bytes.strip),
        content_encoding=st.sampled_from(["identity", "zstd"]),
        priority=st.sampled_from(Priority),
        correlation_id=st.none() | st.text(max_size=9).filter(lambda text: text.isprintable()),
        attempt=st.integers(1, 1000),
        max_attempts=st.integers(1, 1000),
    )
)
def test_every_envelope_survives_its_way_through_the_fields_of_an_entry(envelope: EventEnvelope) -> None:
    flat = fields_of(envelope)
    assert envelope_of(dict(zip(flat[::2], flat[1::2], strict=True))) == envelope


@given(st.dictionaries(st.binary(max_size=12), st.binary(max_size=40), max_size=20))
def test_no_fields_whatever_raise_anything_but_a_violation(fields: dict[bytes, bytes]) -> None:
    with pytest.raises(ContractError):
        envelope_of(fields)


@given(st.tuples(st.integers(0, 2**63), st.integers(0, 2**63)), st.tuples(st.integers(0, 2**63), st.integers(0, 2**63)))
def test_no_two_entries_share_a_place(one: tuple[int, int], two: tuple[int, int]) -> None:
    places = []
    for ms, seq in (one, two):
        try:
            place = location_of(TOPIC, b"%d-%d" % (ms, seq))
        except ContractError:
            return
        assert 0 <= place.line <= 2**53
        places.append(place)
    assert (places[0] == places[1]) == (one == two)


def test_a_place_can_be_read_by_eye() -> None:
    assert location_of(TOPIC, b"1763764800123-4") == (f"redis/{TOPIC}", 1763764800123004)
    assert location_of(TOPIC, b"1763764800123-4567") == (f"redis/{TOPIC}/1763764800123", 4568)


def test_a_report_put_twice_has_one_event_id_and_carries_the_name_it_was_put_under(server: RedisProcess) -> None:
    bus = stream_bus(server, clock=lambda: NOW, ttl_s=77)
    for name in ("a", "b"):
        bus.put(TOPIC, name, [b'{"x": 1}'])
    first, second = (envelope_of(fields) for _, fields in server.client.xrange(TOPIC))
    assert first.event_id == second.event_id != envelope_of(entry_bytes(b"{}")).event_id
    assert (first.type, first.correlation_id, second.correlation_id) == ("tamiyo.field_report", "a", "b")
    assert (first.created_at, first.ttl_s, first.payload) == (NOW, 77, b'{"x": 1}')


def entry_bytes(payload: bytes) -> dict[bytes, bytes]:
    flat = wrapper(TOPIC, "n", NOW, 60)(payload)
    return dict(zip(flat[::2], flat[1::2], strict=True))


def test_urgent_entries_of_one_read_come_first(server: RedisProcess) -> None:
    bus = stream_bus(server)
    for number, priority in enumerate((2, 3, 0, 2, 1)):
        server.client.xadd(TOPIC, entry(b"%d" % number, priority=priority))
    assert list(drain(bus)) == [b"2", b"4", b"0", b"3", b"1"]


def test_compressed_payloads_are_unpacked_within_the_limit(server: RedisProcess) -> None:
    pack = zstandard.ZstdCompressor().compress
    for payload in (pack(b"small"), pack(b"y" * 50_000_000), b"no zstd"):
        server.client.xadd(TOPIC, entry(payload, content_encoding="zstd"))
    (delivery,) = stream_bus(server).claim(TOPIC)
    assert [(line.data[:7], len(line.data), line.defect) for line in delivery.open(1000)] == [
        (b"small", 5, None),
        (b"yyyyyyy", 1000, Defect.TOO_LONG),
        (b"no zstd", 7, Defect.TORN),
    ]


# -- hostile entries --------------------------------------------------------------------------------

HOSTILE: list[dict[Any, Any]] = [
    entry(None),  # type: ignore[arg-type]
    entry(b""),
    entry(b"  \n"),
    entry(event_id="../../etc"),
    entry(created_at="yesterday"),
    entry(created_at="2026-05-01T00:00:00"),
    entry(ttl_s="soon"),
    entry(ttl_s="-1"),
    entry(priority="9"),
    entry(schema_version="2"),
    entry(attempt="1e9"),
    entry(surprise="1"),
    entry(source=b"\xff\xfe"),
    entry(content_encoding="gzip"),
    entry(type="T" * 10_000),
    {b"\xff" * 50: b"\x00"},
    {f"field{number}": "x" for number in range(500)},
    entry(b"z" * (RAW_LIMIT_BYTES + 10)),
]


def test_pd5_hostile_entries_become_dead_letters_and_harm_no_good_one(server: RedisProcess) -> None:
    """PD-5: each keeps its reason and its bytes, cut where they are many."""
    bus = stream_bus(server)
    for number, fields in enumerate(HOSTILE):
        server.client.xadd(TOPIC, entry(b"good %d" % number))
        server.client.xadd(TOPIC, fields)
    assert list(drain(bus)) == [b"good %d" % number for number in range(len(HOSTILE))]
    letters = list(bus.dead_letters(TOPIC))
    assert {letter.reason for letter in letters} == {"malformed"}
    assert bus.counters(TOPIC) == (0, 0, len(HOSTILE), 0, 0)
    assert len(letters) == len(HOSTILE)
    assert all(letter.message and letter.attempts == 1 for letter in letters)
    assert [letter.is_whole for letter in letters] == [True] * (len(HOSTILE) - 2) + [False] * 2
    assert len(letters[-1].raw) <= RAW_LIMIT_BYTES
    assert letters[3].fields[b"event_id"] == b"../../etc"


def test_the_message_of_a_dead_letter_is_short_and_its_warning_plain(
    server: RedisProcess, caplog: pytest.LogCaptureFixture
) -> None:
    """PD-5: the name of a field comes from a stranger, and messages name fields."""
    server.client.xadd(TOPIC, entry(**{"\x1b[2J" + letter * 10_000: "1" for letter in "xyz"}))
    bus = stream_bus(server)
    assert list(drain(bus)) == []
    (letter,) = bus.dead_letters(TOPIC)
    assert len(letter.message) == 512
    assert "\x1b" not in caplog.text
    assert len(caplog.text) < 2_000


def test_an_entry_id_beyond_all_numbers_is_a_dead_letter(server: RedisProcess) -> None:
    stream_bus(server).put(TOPIC, "a", [b"good"])
    server.client.xadd(TOPIC, entry(b"odd"), id=f"{2**62}-{2**63}")
    bus = stream_bus(server)
    assert list(drain(bus)) == [b"good"]
    assert reasons(bus) == [("malformed", b"odd")]


def test_a_key_of_another_kind_is_a_configuration_error(server: RedisProcess) -> None:
    server.client.set(TOPIC, "not a stream")
    with pytest.raises(ConfigError, match="WRONGTYPE"):
        list(stream_bus(server).claim(TOPIC))


# -- time to live -----------------------------------------------------------------------------------


def test_expired_entries_become_dead_letters_with_that_reason(server: RedisProcess) -> None:
    stream_bus(server, clock=lambda: NOW, ttl_s=60).put(TOPIC, "a", [b"old"])
    stream_bus(server, clock=lambda: NOW, ttl_s=61).put(TOPIC, "b", [b"fresh"])
    bus = stream_bus(server, clock=lambda: NOW + timedelta(seconds=60))
    assert list(drain(bus)) == [b"fresh"]
    assert reasons(bus) == [("expired", b"old")]
    assert bus.counters(TOPIC).dead_lettered == 1


def test_an_entry_from_the_end_of_time_is_delivered(server: RedisProcess) -> None:
    """PD-5: no moment that the contract allows makes the reader stumble."""
    server.client.xadd(TOPIC, entry(b"late", created_at="9999-12-31T23:59:59Z"))
    server.client.xadd(TOPIC, entry(b"early", created_at="0001-01-01T00:00:00Z"))
    bus = stream_bus(server)
    assert list(drain(bus)) == [b"late"]
    assert reasons(bus) == [("expired", b"early")]


def test_replay_gives_dead_letters_another_life(server: RedisProcess) -> None:
    stream_bus(server, clock=lambda: NOW, ttl_s=60).put(TOPIC, "a", [b"1", b"2"])
    server.client.xadd(TOPIC, entry(b"z" * (RAW_LIMIT_BYTES + 1), created_at=NOW.isoformat()))
    later = NOW + timedelta(days=3)
    bus = stream_bus(server, clock=lambda: later)
    assert list(drain(bus)) == []
    assert bus.replay(TOPIC) == 2
    assert [letter.is_whole for letter in bus.dead_letters(TOPIC)] == [False]
    assert list(drain(bus)) == [b"1", b"2"]


# -- attempts ---------------------------------------------------------------------------------------


def test_the_second_attempt_is_alone_the_last_line_by_line_and_then_it_is_over(server: RedisProcess) -> None:
    stream_bus(server).put(TOPIC, "a", [b"1", b"2", b"3"])
    seen = [[(datas(d), d.isolate) for d in stream_bus(server).claim(TOPIC)] for _ in range(4)]
    assert seen == [
        [([b"1", b"2", b"3"], False)],
        [([b"1", b"2", b"3"], True)],
        [([b"1"], True), ([b"2"], True), ([b"3"], True)],
        [],
    ]
    bus = stream_bus(server)
    assert reasons(bus) == [("attempts", data) for data in (b"1", b"2", b"3")]
    assert [letter.attempts for letter in bus.dead_letters(TOPIC)] == [3, 3, 3]
    assert server.client.xpending(TOPIC, GROUP)["pending"] == 0


def test_attempts_count_only_what_was_opened(server: RedisProcess) -> None:
    """A consumer that dies at its first entry uses up no attempt of the others."""
    stream_bus(server).put(TOPIC, "a", [b"%d" % number for number in range(5)])
    for _ in range(2):
        list(stream_bus(server).claim(TOPIC))
    for _ in range(3):
        assert datas(next(iter(stream_bus(server).claim(TOPIC)))) != []
    bus = stream_bus(server)
    rest = list(drain(bus))
    assert [raw for _, raw in reasons(bus)] == [b"0", b"1", b"2"]
    assert rest == [b"3", b"4"]


def test_an_envelope_may_allow_fewer_attempts(server: RedisProcess) -> None:
    bus = stream_bus(server, max_attempts=5)
    server.client.xadd(TOPIC, entry(b"once", max_attempts=1))
    server.client.xadd(TOPIC, entry(b"tried", attempt=3))
    server.client.xadd(TOPIC, entry(b"over", attempt=4))
    assert len(list(bus.claim(TOPIC))) == 1
    assert reasons(bus) == [("attempts", b"over")]
    assert list(drain(stream_bus(server, max_attempts=5))) == []
    assert [raw for _, raw in reasons(bus)] == [b"over", b"once", b"tried"]


def test_dead_letters_are_bounded_and_those_that_leave_are_counted(server: RedisProcess) -> None:
    bus = stream_bus(server, dead_letters=3)
    for _ in range(5):
        server.client.xadd(TOPIC, {"x": "y"})
    assert list(drain(bus)) == []
    assert bus.counters(TOPIC) == (0, 0, 5, 2, 0)
    assert bus.status(TOPIC).dead_letters == 3


# -- consumers --------------------------------------------------------------------------------------


def test_entries_of_a_consumer_long_idle_are_taken_over_and_those_of_a_busy_one_are_not(server: RedisProcess) -> None:
    dead = stream_bus(server, "dead")
    dead.put(TOPIC, "a", [b"%d" % number for number in range(250)])
    assert len(list(dead.claim(TOPIC))) == 3
    assert list(drain(stream_bus(server, "heir"))) == []
    heir = stream_bus(server, "heir", reclaim_idle_s=0.001)
    assert list(drain(heir)) == [b"%d" % number for number in range(250)]
    assert heir.counters(TOPIC) == (250, 250, 0, 0, 0)


def consumers(server: RedisProcess) -> set[str]:
    return {consumer["name"].decode() for consumer in server.client.xinfo_consumers(TOPIC, GROUP)}


def test_consumers_that_rested_and_hold_nothing_are_forgotten(
    server: RedisProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each machine and home is a consumer; those of containers never come back."""
    holds, gone, own = (stream_bus(server, name) for name in ("holds", "gone", "own"))
    own.put(TOPIC, "a", [b"0"])
    assert len(list(holds.claim(TOPIC))) == 1
    for bus in (gone, own):
        own.put(TOPIC, "b", [b"1"])
        assert list(drain(bus)) == [b"1"]
    assert consumers(server) == {"holds", "gone", "own"}, "a day has not passed"
    monkeypatch.setattr("simic.bus.redis.bus.CONSUMER_REST_S", 0)
    assert list(drain(own)) == []
    assert consumers(server) == {"holds", "own"}
    assert list(drain(holds)) == [b"0"], "what it held is its own still"
    own.put(TOPIC, "c", [b"2"])
    assert list(drain(gone)) == [b"2"], "it comes back as if nothing had been"


def test_what_was_trimmed_unread_is_seen_without_being_counted(server: RedisProcess) -> None:
    bus = stream_bus(server)
    assert bus.uncounted(TOPIC) == 0, "nor is a stream made by looking"
    assert not server.client.exists(TOPIC)
    bus.put(TOPIC, "a", [b"0", b"1"])
    server.client.xtrim(TOPIC, maxlen=0, approximate=False)
    assert (bus.uncounted(TOPIC), bus.uncounted(TOPIC)) == (2, 2)
    assert list(drain(bus)) == []
    assert (bus.counters(TOPIC).lost, bus.uncounted(TOPIC)) == (2, 0)


def test_two_consumers_share_a_stream(server: RedisProcess) -> None:
    one, two = stream_bus(server, "one", batch=10), stream_bus(server, "two", batch=10)
    one.put(TOPIC, "a", [b"%d" % number for number in range(40)])
    first, second = one.claim(TOPIC), two.claim(TOPIC)
    got = [data for claim in (first, second, first, second) for data in datas(next(claim))]
    assert sorted(got) == sorted(b"%d" % number for number in range(40))


def test_a_claim_takes_what_was_there_when_it_began(server: RedisProcess) -> None:
    """A producer that never rests does not keep a run from ending."""
    bus = stream_bus(server, batch=1)
    bus.put(TOPIC, "a", [b"0"])
    got = []
    for delivery in bus.claim(TOPIC):
        got += datas(delivery)
        bus.put(TOPIC, "more", [b"%d" % len(got)])
        bus.ack(delivery)
    assert got == [b"0"]
    assert list(drain(bus)) == [b"1"]


class LosingServer(RedisServer):
    """Breaks off once: after the server did what it was asked, before its answer came."""

    def call(self, what: str, ask: Any, attempts: int | None = None) -> Any:
        if what != f"read {TOPIC}" or self.interruptions:
            return super().call(what, ask, attempts)

        def lose(client: redis.Redis) -> Any:
            answer = ask(client)
            if not self.interruptions:
                raise redis.ConnectionError("reset by peer")
            return answer

        return super().call(what, lose, attempts)


def test_entries_whose_answer_was_lost_on_its_way_come_in_the_same_claim(server: RedisProcess) -> None:
    config = BusConfig(batch=2)
    bus = RedisStreamsBus(LosingServer(server.url, 3), config, "one")
    bus.put(TOPIC, "a", [b"%d" % number for number in range(6)])
    got = [datas(delivery) for delivery in bus.claim(TOPIC)]
    assert got == [[b"2", b"3"], [b"4", b"5"], [b"0", b"1"]]
    assert bus.counters(TOPIC)[:4] == (2, 0, 0, 0)


def test_a_service_waits_for_more(server: RedisProcess) -> None:
    bus = stream_bus(server, block_ms=50)
    bus.put(TOPIC, "a", [b"0"])
    got = []
    for delivery in bus.claim(TOPIC):
        got += datas(delivery)
        if len(got) < 3:
            bus.put(TOPIC, "more", [b"%d" % len(got)])
        bus.ack(delivery)
    assert got == [b"0", b"1", b"2"]


# -- trimming ---------------------------------------------------------------------------------------


def test_trimmed_while_pending_is_lost_and_counted_once(server: RedisProcess, caplog: pytest.LogCaptureFixture) -> None:
    stream_bus(server).put(TOPIC, "a", [b"1", b"2", b"3"])
    assert len(list(stream_bus(server).claim(TOPIC))) == 1
    server.client.xtrim(TOPIC, maxlen=1, approximate=False)
    bus = stream_bus(server)
    with caplog.at_level(logging.ERROR):
        assert list(drain(bus)) == [b"3"]
    assert bus.counters(TOPIC) == (1, 0, 0, 2, 0)
    assert "2 entries" in caplog.text
    assert "LOST" in caplog.text
    assert list(drain(bus)) == []
    assert bus.counters(TOPIC).lost == 0


def test_trimmed_while_pending_elsewhere_is_lost_too(server: RedisProcess) -> None:
    """The third result of XAUTOCLAIM."""
    stream_bus(server, "dead").put(TOPIC, "a", [b"1", b"2", b"3"])
    assert len(list(stream_bus(server, "dead").claim(TOPIC))) == 1
    server.client.xtrim(TOPIC, maxlen=1, approximate=False)
    heir = stream_bus(server, "heir", reclaim_idle_s=0.001)
    assert list(drain(heir)) == [b"3"]
    assert heir.counters(TOPIC) == (1, 1, 0, 2, 0)


def test_trimmed_after_the_last_attempt_is_lost_too(server: RedisProcess) -> None:
    stream_bus(server).put(TOPIC, "a", [b"1", b"2"])
    for _ in range(3):
        list(stream_bus(server).claim(TOPIC))
    server.client.xtrim(TOPIC, maxlen=1, approximate=False)
    bus = stream_bus(server)
    assert list(drain(bus)) == []
    assert bus.counters(TOPIC) == (0, 0, 1, 1, 0)


@pytest.mark.parametrize("left", [0, 2])
def test_trimmed_before_delivery_is_lost_and_counted_once(server: RedisProcess, left: int) -> None:
    bus = stream_bus(server)
    bus.put(TOPIC, "a", [b"0"])
    assert list(drain(bus)) == [b"0"]
    bus.put(TOPIC, "b", [b"%d" % number for number in range(1, 6)])
    server.client.xtrim(TOPIC, maxlen=left, approximate=False)
    assert len(list(drain(bus))) == left
    assert bus.counters(TOPIC) == (0, 0, 0, 5 - left, 0)
    assert list(drain(bus)) == []
    assert bus.counters(TOPIC) == (0, 0, 0, 0, 0)
    bus.put(TOPIC, "c", [b"after"])
    assert list(drain(bus)) == [b"after"]
    assert bus.counters(TOPIC).lost == 0


def test_a_restart_of_the_server_makes_nothing_look_lost(tmp_path: Path) -> None:
    """It starts from its append-only file, which does not hold how many entries a group has read."""
    with RedisProcess(tmp_path) as process:
        bus = stream_bus(process, batch=3)
        bus.put(TOPIC, "a", [b"%d" % number for number in range(10)])
        claim = bus.claim(TOPIC)
        got = [data for delivery in (next(claim), next(claim)) for data in datas(delivery)]
        process.kill()
        process.start()
        assert bus.status(TOPIC)[2:5] == (10, 4, 6)
        got += [data for delivery in claim for data in datas(delivery)]
        assert (len(got), bus.counters(TOPIC).lost) == (10, 0)


def test_only_old_acknowledged_entries_are_trimmed(server: RedisProcess) -> None:
    old_ms = int((utc_now() - timedelta(days=2)).timestamp() * 1000)
    for number in range(6):
        server.client.xadd(TOPIC, entry(b"%d" % number), id=f"{old_ms}-{number + 1}")
    bus = stream_bus(server, batch=2, keep_s=None)
    first, second, third = list(bus.claim(TOPIC))
    bus.ack(first)
    bus.ack(third)
    bus.put(TOPIC, "b", [b"new"])
    assert server.client.xlen(TOPIC) == 7
    assert list(stream_bus(server, "two", keep_s=DAY_S).claim(TOPIC)) != []
    assert [fields[b"payload"] for _, fields in server.client.xrange(TOPIC)] == [b"2", b"3", b"4", b"5", b"new"]
    bus.ack(second)
    list(stream_bus(server, keep_s=DAY_S).claim(TOPIC))
    assert [fields[b"payload"] for _, fields in server.client.xrange(TOPIC)] == [b"new"]


def test_another_group_that_has_not_read_yet_keeps_entries_from_being_trimmed(server: RedisProcess) -> None:
    bus = stream_bus(server, keep_s=0)
    bus.put(TOPIC, "a", [b"1", b"2"])
    server.client.xgroup_create(TOPIC, "audit", "0")
    assert list(drain(bus)) == [b"1", b"2"]
    list(drain(bus))
    assert server.client.xlen(TOPIC) == 2
    server.client.xreadgroup("audit", "x", {TOPIC: ">"}, noack=True)
    list(drain(bus))
    assert server.client.xlen(TOPIC) == 1


def test_entries_acknowledged_elsewhere_while_trimming_stop_nothing(
    server: RedisProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    bus, other = stream_bus(server, keep_s=0), stream_bus(server, "two", keep_s=None)
    bus.put(TOPIC, "a", [b"1"])
    (delivery,) = other.claim(TOPIC)
    ask = redis.Redis.xpending

    def ask_late(client: redis.Redis, *arguments: Any) -> Any:
        other.ack(delivery)
        return ask(client, *arguments)

    monkeypatch.setattr(redis.Redis, "xpending", ask_late)
    trim(RedisServer(server.url, 3), TOPIC, 0)
    assert other.pending(TOPIC) == 0


# -- a server that misbehaves -----------------------------------------------------------------------


def test_a_flushed_server_is_transient_and_then_works_again(server: RedisProcess) -> None:
    bus = stream_bus(server, batch=1)
    bus.put(TOPIC, "a", [b"1", b"2"])
    claim = bus.claim(TOPIC)
    next(claim)
    server.client.flushall()
    with pytest.raises(TransientError, match="NOGROUP"):
        list(claim)
    bus.put(TOPIC, "b", [b"3"])
    assert list(drain(bus)) == [b"3"]


def test_a_server_without_memory_is_transient(server: RedisProcess) -> None:
    bus = stream_bus(server)
    bus.put(TOPIC, "a", [b"1"])
    server.client.config_set("maxmemory", "1")
    try:
        with pytest.raises(TransientError, match="maxmemory"):
            bus.put(TOPIC, "b", [b"2"])
    finally:
        server.client.config_set("maxmemory", "0")
