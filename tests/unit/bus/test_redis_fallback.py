"""While Redis is away nothing is lost, and afterwards everything comes in order."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.servers.redis_buses import TOPIC, drain, stream_bus
from support.servers.redis_server import RedisProcess

from simic.bus.codec import MAX_PAYLOAD_BYTES
from simic.bus.redis.fallback import RETRY_AFTER_S, SpoolFallbackBus
from simic.bus.spool.bus import SpoolBus
from simic.contracts.errors import ContractError, TransientError
from simic.contracts.names import POLICY_UPDATES
from simic.runtime.locks import exclusive


class Seconds:
    """A monotonic clock that a test moves."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RedisProcess]:
    with RedisProcess(tmp_path / "redis") as process:
        yield process


@pytest.fixture
def seconds() -> Seconds:
    return Seconds()


@pytest.fixture
def bus(server: RedisProcess, tmp_path: Path, seconds: Seconds) -> SpoolFallbackBus:
    return SpoolFallbackBus(
        SpoolBus(tmp_path / "spool"), stream_bus(server, connect_attempts=1), tmp_path / "locks", seconds
    )


def waiting(tmp_path: Path) -> int:
    return len(list((tmp_path / "spool").rglob("*.jsonl.zst")))


def test_nothing_stays_in_the_spool_while_redis_is_there(bus: SpoolFallbackBus, tmp_path: Path) -> None:
    for number in range(3):
        bus.put(TOPIC, f"n{number}", [b"%d" % number])
    assert waiting(tmp_path) == 0
    assert bus.status(TOPIC)[2:] == (3, 3, 0, 0, 0, 0)
    assert list(drain(bus)) == [b"0", b"1", b"2"]


def test_what_is_put_while_redis_is_away_follows_in_order(
    bus: SpoolFallbackBus, server: RedisProcess, seconds: Seconds, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    bus.put(TOPIC, "a", [b"0", b"1"])
    server.kill()
    with caplog.at_level(logging.WARNING):
        for number in range(2, 12):  # names that sort otherwise
            bus.put(TOPIC, f"n{100 - number}", [b"%d" % number])
    assert caplog.text.count("waits in the spool") == 1, "known to be away, it is not asked for every put"
    assert waiting(tmp_path) == 10
    assert bus.status(TOPIC)[2:] == (None, None, None, None, 10, 0)
    assert bus.counters(TOPIC).lag is None
    with pytest.raises(TransientError, match="is away"):
        next(iter(bus.claim(TOPIC)))
    server.start()
    bus.put(TOPIC, "too-soon", [b"12"])
    assert waiting(tmp_path) == 11, "what was spilled comes first"
    seconds.now += RETRY_AFTER_S
    bus.put(TOPIC, "last", [b"13"])
    assert waiting(tmp_path) == 0
    assert list(drain(bus)) == [b"%d" % number for number in range(14)]


def test_a_producer_returns_to_a_redis_that_was_silent_beyond_the_deadline(
    server: RedisProcess, seconds: Seconds, tmp_path: Path
) -> None:
    """A training of days keeps one bus; its reports would wait for some other command."""
    stream = stream_bus(server, connect_attempts=1, deadline_s=1e-6)
    bus = SpoolFallbackBus(SpoolBus(tmp_path / "spool"), stream, tmp_path / "locks", seconds)
    server.kill()
    pauses = []
    for number in range(3):
        bus.put(TOPIC, "a", [b"%d" % number])
        assert bus._away_until is not None
        pauses.append(bus._away_until - seconds.now)
        seconds.now = bus._away_until
    assert pauses == [RETRY_AFTER_S, 2 * RETRY_AFTER_S, 4 * RETRY_AFTER_S], "a silent server holds a training up"
    server.start()
    stream._server.deadline_s = 10.0
    bus.put(TOPIC, "a", [b"3"])
    assert waiting(tmp_path) == 0
    assert list(drain(bus)) == [b"0", b"1", b"2", b"3"]


def test_a_claim_brings_what_was_spilled_of_every_topic(
    bus: SpoolFallbackBus, server: RedisProcess, tmp_path: Path
) -> None:
    """Nobody here claims what is published, so it must not wait for the next thing published."""
    server.kill()
    bus.put(TOPIC, "a", [b"1"])
    bus.put("other.topic", "b", [b"2"])
    server.start()
    assert list(drain(bus)) == [b"1"]
    assert waiting(tmp_path) == 0
    assert server.client.xlen("other.topic") == 1


def test_as_many_files_are_forwarded_as_are_asked_for_and_the_oldest_first(
    bus: SpoolFallbackBus, server: RedisProcess, tmp_path: Path
) -> None:
    server.kill()
    for number in range(4):
        bus.put(TOPIC, "n", [b"%d" % number])
    bus.put(POLICY_UPDATES, "n", [b"{}"])
    with pytest.raises(TransientError, match="is away"):
        bus.catch_up(2)
    assert bus.spilled() == waiting(tmp_path) == 5, "nothing leaves before Redis has answered for it"
    server.start()
    told: list[int] = []
    assert (bus.catch_up(2, told.append), bus.spilled()) == (2, 3)
    assert (bus.catch_up(2), bus.spilled(), told) == (2, 1, [1, 1])
    assert (bus.catch_up(), bus.spilled()) == (1, 0)
    assert list(drain(bus)) == [b"0", b"1", b"2", b"3"]


def test_order_holds_when_the_clock_is_set_back(
    bus: SpoolFallbackBus, server: RedisProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.kill()
    for number, moment in enumerate((10**18, 10**17, 10**17, 10**16)):
        monkeypatch.setattr("simic.bus.redis.fallback.time.time_ns", lambda moment=moment: moment)
        bus.put(TOPIC, "n", [b"%d" % number])
    server.start()
    assert list(drain(bus)) == [b"0", b"1", b"2", b"3"]


def test_files_that_a_person_dropped_travel_too(bus: SpoolFallbackBus, tmp_path: Path) -> None:
    folder = tmp_path / "spool" / TOPIC / "incoming"
    folder.mkdir(parents=True)
    (folder / "mine.jsonl").write_bytes(b'{"a": 1}\n' + b"x" * MAX_PAYLOAD_BYTES + b'\n{"b": 2}\n')
    got = list(drain(bus))
    assert [(data[:8], len(data)) for data in got] == [(b'{"a": 1}', 8), (b"xxxxxxxx", 1 << 20), (b'{"b": 2}', 8)]
    assert list((tmp_path / "spool").rglob("*.jsonl*")) == []


def test_pd5_a_line_longer_than_an_entry_becomes_a_dead_letter_and_its_file_is_kept_whole(
    bus: SpoolFallbackBus, tmp_path: Path
) -> None:
    """An entry of its beginning would be refused as damaged, and the only copy of the rest would be gone."""
    folder = tmp_path / "spool" / TOPIC / "incoming"
    folder.mkdir(parents=True)
    content = b'{"a": 1}\n' + b"x" * (MAX_PAYLOAD_BYTES + 1) + b'\n{"b": 2}\n'
    (folder / "mine.jsonl").write_bytes(content)
    (folder / "next.jsonl").write_bytes(b"3\n")
    assert list(drain(bus)) == [b'{"a": 1}', b'{"b": 2}', b"3"]
    (letter,) = bus.dead_letters(TOPIC)
    assert letter.message.startswith("line 2 of mine: expected at most 1048576 bytes, which an entry of Redis carries")
    assert f"its file is set aside as {TOPIC}/aside/mine.jsonl" in letter.message
    assert (letter.raw[:2], letter.is_whole, bus.replay(TOPIC)) == (b"xx", False, 0)
    assert (folder.with_name("aside") / "mine.jsonl").read_bytes() == content
    assert bus.status(TOPIC)[6:] == (0, 1)


def test_pd5_files_that_cannot_be_read_are_set_aside_and_become_dead_letters(
    bus: SpoolFallbackBus, tmp_path: Path
) -> None:
    """What waits for Redis is forwarded whatever else lies there; a report's row in the quarantine has no other way."""
    folder = tmp_path / "spool" / TOPIC / "incoming"
    (folder / "b.jsonl").mkdir(parents=True)
    (folder / ("c" * 249 + ".jsonl")).write_bytes(b"3\n")
    (folder / "d.jsonl").write_bytes(b"4\n")
    os.truncate(folder / "d.jsonl", 1 << 40)
    (folder / "e.jsonl").write_bytes(b"5\n")
    assert list(drain(bus)) == [b"3", b"5"]
    first, second = bus.dead_letters(TOPIC)
    assert f"expected a regular file, found a directory; set aside as {TOPIC}/aside/b.jsonl" in first.message
    assert "(ingest.max_file_mb), found 1099511627776" in second.message
    aside = folder.with_name("aside")
    assert sorted(path.name for path in aside.iterdir()) == ["b.jsonl", "d.jsonl"]
    assert bus.status(TOPIC).spilled == 0


def test_a_line_that_cannot_travel_does_not_block_the_others(bus: SpoolFallbackBus, tmp_path: Path) -> None:
    folder = tmp_path / "spool" / POLICY_UPDATES / "incoming"
    folder.mkdir(parents=True)
    (folder / "mine.jsonl").write_bytes(b"no envelope\n")
    assert list(drain(bus, POLICY_UPDATES)) == []
    (letter,) = bus.dead_letters(POLICY_UPDATES)
    assert (letter.reason, letter.raw) == ("malformed", b"no envelope")
    assert "line 1 of mine" in letter.message
    assert list((tmp_path / "spool").rglob("*.jsonl*")) == []


def test_a_line_too_long_for_an_envelope_is_refused_before_anything_is_published(bus: SpoolFallbackBus) -> None:
    with pytest.raises(ContractError, match="exceeds"):
        bus.put(TOPIC, "a", [b"1", b"x" * ((1 << 20) + 1)])
    assert list(drain(bus)) == []


def test_what_another_process_forwards_is_left_to_it(
    bus: SpoolFallbackBus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("simic.bus.redis.fallback._LOCK_WAIT_S", 0.0)
    with exclusive(tmp_path / "locks" / f"spill-{TOPIC}", "test"):
        bus.put(TOPIC, "a", [b"1"])
        assert waiting(tmp_path) == 1
    assert bus.catch_up() == 1


DYING = """
import os, signal, sys
from pathlib import Path
from support.servers.redis_buses import stream_bus
from simic.bus.redis.fallback import SpoolFallbackBus
from simic.bus.spool.bus import SpoolBus

root, url, deaths = Path(sys.argv[1]), sys.argv[2], sys.argv[3]
spool, stream = SpoolBus(root / "spool"), stream_bus(url)
bus = SpoolFallbackBus(spool, stream, root / "locks")
die = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
if deaths == "before": stream.forward = die
if deaths == "between": spool.discard = die
if deaths == "within":
    real = stream._server.send
    stream._server.send = lambda what, packed, commands=1: (real(what, packed, commands), die())
bus.put("tamiyo.field_reports", "a", [b"%d" % number for number in range(700)])
"""


@pytest.mark.parametrize(("point", "times"), [("before", 1), ("within", 2), ("between", 2)])
def test_a_producer_killed_while_it_forwards_loses_nothing(
    bus: SpoolFallbackBus, server: RedisProcess, tmp_path: Path, point: str, times: int
) -> None:
    command = [sys.executable, "-c", DYING, str(tmp_path), server.url, point]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    done = subprocess.run(command, check=False, timeout=60, env=environment)
    assert done.returncode == -signal.SIGKILL
    got = list(drain(bus))
    assert {data: got.count(data) for data in got}.keys() == {b"%d" % number for number in range(700)}
    assert max(map(got.count, got)) == times
    assert waiting(tmp_path) == 0


def test_what_cannot_be_claimed_is_neither_buried_nor_counted(
    bus: SpoolFallbackBus, server: RedisProcess, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It comes again with every put, each of which would make one more dead letter."""
    folder = tmp_path / "spool" / TOPIC
    (folder / "incoming" / "0.jsonl").mkdir(parents=True)
    (folder / "claimed").symlink_to(folder / "incoming" / "0.jsonl")  # a directory does not move into itself
    for number in range(3):
        bus.put(TOPIC, "a", [b"%d" % number])
    assert list(bus.dead_letters(TOPIC)) == []
    assert caplog.text.count("0.jsonl of tamiyo.field_reports is not forwarded: it cannot be claimed") == 3
    server.kill()
    bus.put(TOPIC, "a", [b"3"])
    server.start()
    assert (bus.catch_up(1), waiting(tmp_path)) == (1, 0)
    assert list(drain(bus)) == [b"0", b"1", b"2", b"3"]
