"""kill -9 of consumers and of the server, Redis in between: every report lands once."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.builders.reports import BLUEPRINTS, episode, episodes, line
from support.homes.pipeline import PROVENANCE
from support.servers.redis_buses import TOPIC, stream_bus
from support.servers.redis_server import RedisProcess

from simic.bus.protocol import Bus
from simic.bus.redis.fallback import SpoolFallbackBus
from simic.bus.spool.bus import SpoolBus
from simic.catalogue.query import query
from simic.contracts.errors import TransientError
from simic.contracts.results.receipts import IngestReceipt
from simic.contracts.settings.run import IngestConfig
from simic.ingestion.ingest import ingest
from simic.runtime.clock import utc_now
from simic.runtime.home import Home

KILLS = 100
RESTARTS = 50
BATCH = {"batch": 7, "reclaim_idle_s": 0.001}


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RedisProcess]:
    with RedisProcess(tmp_path / "redis") as process:
        yield process


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path / "home")


def ingest_from(bus: Bus, home: Home, batch_reports: int = 500) -> IngestReceipt:
    config = IngestConfig(batch_reports=batch_reports)
    return ingest(bus, home, config, frozenset(BLUEPRINTS), provenance=PROVENANCE, clock=utc_now)


def assert_each_landed_once(home: Home, expected: list[str]) -> None:
    rows = query(home, "SELECT report_id FROM reports ORDER BY report_id")
    assert [row["report_id"] for row in rows] == sorted(expected)
    assert query(home, "SELECT DISTINCT reason FROM quarantine WHERE reason <> 'duplicate'") == []


# One process loads the libraries; each victim is a fork of it, which costs next to nothing.
VICTIMS = """
import json, os, random, signal, sys, time
import pandas, pyarrow.compute  # which pyarrow would load in every victim
from pathlib import Path
from support.homes.pipeline import PROVENANCE
from support.builders.reports import BLUEPRINTS
from support.servers.redis_buses import stream_bus
from simic.contracts.settings.run import IngestConfig
from simic.ingestion.ingest import ingest
from simic.runtime.clock import utc_now
from simic.runtime.home import Home

home, url, kills, settings = Home(Path(sys.argv[1])), sys.argv[2], int(sys.argv[3]), json.loads(sys.argv[4])
poison, rng, done, rounds = sys.argv[5].encode(), random.Random(0), 0, 0

def die(*_):
    os.kill(os.getpid(), signal.SIGKILL)

class Bus:
    "Redis, with a consumer that a certain line brings down."
    def __init__(self, bus):
        self.ack, self.counters, self.bus = bus.ack, bus.counters, bus
    def claim(self, topic):
        for delivery in self.bus.claim(topic):
            if poison and any(poison in line.data for line in delivery.open(1 << 20)):
                die()
            yield delivery

def victim(passes, consumer):
    def checkpoint(name):
        nonlocal passes
        passes -= 1
        if passes == 0:
            die()
    ingest(Bus(stream_bus(url, consumer, **settings)), home, IngestConfig(batch_reports=20), frozenset(BLUEPRINTS),
           provenance=PROVENANCE, clock=utc_now, checkpoint=checkpoint)

while done < kills and rounds < 4 * kills:
    rounds += 1
    by_checkpoint, consumer = rng.random() < 0.5, rng.choice("abc")
    pid = os.fork()
    if pid == 0:
        victim(rng.randint(1, 9) if by_checkpoint and not poison else 0, consumer)
        os._exit(0)
    if not by_checkpoint and not poison:
        time.sleep(rng.uniform(0.0, 0.15))
        os.kill(pid, signal.SIGKILL)
    status = os.waitpid(pid, 0)[1]
    done += os.WIFSIGNALED(status)
    if poison and not os.WIFSIGNALED(status):
        break
print(json.dumps(done))
"""


def kill_consumers(home: Home, server: RedisProcess, kills: int, poison: str = "") -> int:
    """Lets consumers die one after the other, at random points or at a line; returns how many did."""
    home.create()
    command = [sys.executable, "-c", VICTIMS, str(home.root), server.url, str(kills), json.dumps(BATCH), poison]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    done = subprocess.run(command, check=True, timeout=800, env=environment, stdout=subprocess.PIPE)
    return int(json.loads(done.stdout))


@pytest.mark.timeout(900)
def test_a_hundred_consumers_killed_at_random_points(home: Home, server: RedisProcess) -> None:
    """Between any two of: read, check, quarantine, part, ledger line, acknowledgement, or anywhere within them."""
    good = episodes(range(90))
    stream_bus(server).put(TOPIC, "a", map(line, good))
    assert kill_consumers(home, server, KILLS) == KILLS
    bus = stream_bus(server, "heir", **BATCH)
    ingest_from(bus, home)
    died = bus.replay(TOPIC)  # what was alone in hand, for the last time, when its consumer was killed
    receipt = ingest_from(bus, home)
    assert died <= KILLS, "a kill costs no more than one report its place on the topic"
    assert (receipt.lost, receipt.lag, receipt.dead_lettered) == (0, 0, 0)
    assert_each_landed_once(home, [report.report_id for report in good])


def test_a_report_that_brings_its_consumers_down_dies_alone(home: Home, server: RedisProcess) -> None:
    """After three attempts it is a dead letter, and every other report has landed."""
    good = episodes(range(5))
    poison = good[33]
    stream_bus(server).put(TOPIC, "a", map(line, good))
    assert kill_consumers(home, server, 10, poison.report_id) == 3
    bus = stream_bus(server, "heir", **BATCH)
    receipt = ingest_from(bus, home)
    (letter,) = bus.dead_letters(TOPIC)
    assert (letter.reason, letter.attempts, letter.raw) == ("attempts", 3, line(poison))
    assert (receipt.lost, receipt.lag) == (0, 0)
    assert_each_landed_once(home, [report.report_id for report in good if report is not poison])


@pytest.mark.timeout(900)
def test_the_server_killed_and_restarted_fifty_times_under_load(home: Home, server: RedisProcess) -> None:
    """A producer that never rests, a consumer that ingests, a server that dies: 0 lost, 0 doubled."""
    is_over = threading.Event()
    sent: list[str] = []
    failures: list[BaseException] = []

    def produce() -> None:
        bus = SpoolFallbackBus(SpoolBus(home.spool), stream_bus(server, "producer"), home.locks)
        try:
            while not is_over.is_set():
                reports = episode(len(sent))
                bus.put(TOPIC, "chunk", map(line, reports))
                sent.extend(report.report_id for report in reports)
                time.sleep(0.02)
        except BaseException as error:
            failures.append(error)
            raise

    def kill_and_restart() -> None:
        rng = random.Random(1)  # noqa: S311
        try:
            for _ in range(RESTARTS):
                time.sleep(rng.uniform(0.0, 0.2))
                server.kill()
                time.sleep(rng.uniform(0.0, 0.1))
                server.start()
        except BaseException as error:
            failures.append(error)
            raise
        finally:
            is_over.set()

    home.create()
    threads = [threading.Thread(target=work) for work in (produce, kill_and_restart)]
    for thread in threads:
        thread.start()
    stream = stream_bus(server, "consumer", connect_attempts=6)
    bus = SpoolFallbackBus(SpoolBus(home.spool), stream, home.locks)
    stumbles, lost = 0, 0
    while any(thread.is_alive() for thread in threads):
        try:
            lost += ingest_from(bus, home).lost or 0
        except TransientError:
            stumbles += 1
    for thread in threads:
        thread.join()
    assert failures == []
    lost += ingest_from(bus, home).lost or 0
    bus.replay(TOPIC)
    receipt = ingest_from(bus, home)
    assert (lost, receipt.lost, receipt.lag, bus.status(TOPIC).spilled) == (0, 0, 0, 0)
    assert stumbles + stream._server.interruptions > 0, "the consumer never noticed"
    assert len(sent) > RESTARTS
    assert_each_landed_once(home, sent)
