"""Collect, ingest and publish with Redis named in the environment, as a person would."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.servers.forked_commands import run_command
from support.servers.redis_buses import TOPIC
from support.servers.redis_server import RedisProcess
from typer.testing import CliRunner

from simic.app import data, training
from simic.app.checks.doctor import open_doctor
from simic.app.container import Container
from simic.bus.codec import decode, envelop, unwrap
from simic.catalogue.query import query
from simic.cli.main import app as command
from simic.contracts.base import Contract
from simic.contracts.envelope import EventEnvelope
from simic.contracts.errors import TransientError
from simic.contracts.names import POLICY_UPDATES
from simic.contracts.results.lake import Check, Health
from simic.publication.outbox import Outbox
from simic.runtime.clock import utc_now
from simic.runtime.home import Home
from simic.runtime.settings import load_profile

SETTINGS = {"world.horizon": 4, "world.chunk": 2, "world.workers": 1, "bus.connect_attempts": 2}
KEYS = [2, 5, 14, 21]


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[RedisProcess]:
    with RedisProcess(tmp_path / "redis") as process:
        monkeypatch.setenv("REDIS_URL", process.url)
        yield process


def open_app(root: Path, workers: int = 1, **more: Any) -> Container:
    return Container(Home(root), load_profile("quick", {**SETTINGS, "world.workers": workers}), 0, **more)


def simic(*words: str) -> Any:
    """What a verb prints as JSON."""
    done = CliRunner().invoke(command, [*words, "--json"])
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


def as_person(*words: str) -> subprocess.CompletedProcess[str]:
    """A verb in a process of its own."""
    return run_command(*words)


def redis_findings(app: Container) -> dict[str, Check]:
    """What the doctor finds wrong with Redis."""
    checks = open_doctor(app).examine().checks
    return {check.name: check for check in checks if "redis" in check.name and check.health is not Health.HEALTHY}


def reports(home: Home) -> list[dict[str, Any]]:
    return query(home, "SELECT report_id, step, outcome, log_prob_behaviour FROM reports ORDER BY report_id")


def test_workers_report_to_redis_and_the_same_rows_land_as_through_the_spool(
    server: RedisProcess, home: Path, tmp_path: Path
) -> None:
    app = open_app(home, workers=2)
    collected = training.collect(app, "random", KEYS)
    assert (server.client.xlen(TOPIC), list(app.home.spool.rglob("*.jsonl*"))) == (16, [])
    receipt = data.ingest(app)
    assert (receipt.read, receipt.landed) == (16, 16)
    assert (receipt.retried, receipt.dead_lettered, receipt.lost, receipt.lag) == (0, 0, 0, 0)
    spooled = open_app(tmp_path / "spooled", spool=tmp_path / "mine")
    assert training.collect(spooled, "random", KEYS).reports_digest == collected.reports_digest
    last = data.ingest(spooled)
    assert server.client.xlen(TOPIC) == 16, "a directory that is named is meant, whatever the environment says"
    assert (last.landed, last.retried, last.dead_lettered, last.lost, last.lag) == (16, 0, 0, 0, 0)
    assert reports(app.home) == reports(spooled.home)


def test_collecting_goes_on_without_redis_and_ingesting_says_what_is_wrong(server: RedisProcess, home: Path) -> None:
    server.kill()
    app = open_app(home)
    training.collect(app, "wait", KEYS)
    with pytest.raises(TransientError, match=f"Redis at 127.0.0.1:{server.port}/0 is away"):
        data.ingest(app)
    server.start()
    assert data.ingest(app).landed == 16


def test_events_of_the_outbox_travel_on_redis_once(server: RedisProcess, home: Path) -> None:
    class News(Contract):
        text: str

    app, now = open_app(home), utc_now()
    event = envelop(News(text="x"), type_="innovation.policy_update", source="simic", created_at=now)
    outbox = Outbox(app.home.outbox, lambda _event: None)
    outbox.add(event)
    bus = app.open_bus()
    assert outbox.flush(bus, POLICY_UPDATES) == [event]
    assert outbox.flush(bus, POLICY_UPDATES) == []
    (delivery,) = bus.claim(POLICY_UPDATES)
    (line,) = delivery.open(1 << 20)
    assert unwrap(decode(EventEnvelope, line.data), News) == News(text="x")
    assert server.client.xrange(POLICY_UPDATES)[0][1][b"type"] == b"innovation.policy_update"


def test_an_operator_sees_what_waits_and_gives_dead_letters_another_life(server: RedisProcess, home: Path) -> None:
    training.collect(open_app(home), "wait", KEYS)
    server.client.xadd(TOPIC, {"payload": b"\xff{", "type": "?"})
    reports_topic, updates_topic = simic("bus", "status")
    assert reports_topic == {
        "topic": TOPIC, "transport": f"redis 127.0.0.1:{server.port}/0", "length": 17, "undelivered": 17, "pending": 0,
        "dead_letters": 0, "spilled": 0, "aside": 0,
    }  # fmt: skip
    assert updates_topic["length"] == 0
    receipt = simic("ingest")
    assert (receipt["landed"], receipt["dead_lettered"]) == (16, 1)
    (letter,) = simic("bus", "dead-letters")
    assert (letter["reason"], letter["raw"], letter["is_whole"]) == ("malformed", "\ufffd{", True)
    assert simic("bus", "dead-letters", "--replay") == {"topic": TOPIC, "replayed": 1, "left": 0}
    assert simic("ingest")["dead_lettered"] == 1
    shown = CliRunner().invoke(command, ["bus", "dead-letters"])
    assert "malformed" in shown.output


def test_what_was_spilled_is_sent_on_by_a_verb_of_its_own(server: RedisProcess, home: Path) -> None:
    server.kill()
    training.collect(open_app(home), "wait", KEYS)
    few = ("-o", "bus.connect_attempts=1")
    away = as_person("bus", "forward", *few)
    assert away.returncode == 4
    assert "is away" in away.stderr and "Traceback" not in away.stderr
    server.start()
    files = open_app(home).open_bus().status(TOPIC).spilled
    assert simic("bus", "forward", "--limit", "1") == {"forwarded": 1, "waiting": files - 1}
    assert simic("bus", "forward") == {"forwarded": files - 1, "waiting": 0}
    assert "forwarded 0 files, 0 wait" in as_person("bus", "forward").stdout
    assert server.client.xlen(TOPIC) == 16
    server.kill()
    assert as_person("bus", "forward", *few).returncode == 4, "also if nothing waits"
    server.start()
    assert data.ingest(open_app(home)).landed == 16


def test_the_doctor_looks_at_redis_and_changes_nothing_there(server: RedisProcess, home: Path) -> None:
    app = open_app(home)
    assert redis_findings(app) == {}
    bus = app.open_bus()
    bus.put(TOPIC, "a", [b"{}", b"{}"])
    server.client.xadd(TOPIC, {"payload": b"\xff{", "type": "?"})
    assert redis_findings(app) == {}, "what waits is no fault"
    list(bus.claim(TOPIC))
    bus.put(TOPIC, "b", [b"{}"])
    server.client.xtrim(TOPIC, maxlen=0, approximate=False)
    before = server.client.dump(TOPIC)
    found = {check.name: check for check in open_doctor(app).examine().checks}
    assert found["redis"].found == f"127.0.0.1:{server.port}/0 answers"
    assert found["redis pending"].found.startswith("2 are delivered")
    assert found["redis waiting"].found.startswith("0 entries")
    assert (found["redis dead letters"].health, found["redis lost"].health) == (Health.DAMAGED, Health.LOST)
    assert found["redis dead letters"].found.startswith("1 ") and found["redis lost"].found.startswith("1 ")
    assert server.client.dump(TOPIC) == before
    data.ingest(app)
    assert redis_findings(app).keys() == {"redis dead letters"}, "an ingest counts what was lost"
    done = as_person("doctor")
    assert done.returncode == 5
    assert "simic bus dead-letters" in done.stdout


@pytest.mark.parametrize("fault", ["away", "refuses", "no address"])
def test_a_redis_that_cannot_be_used_is_a_finding_and_nobody_reads_the_password(
    server: RedisProcess, home: Path, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    host = f"127.0.0.1:{server.port}"
    urls = {"away": f"redis://me:s3cret@{host}/0", "refuses": f"redis://me:s3cret@{host}/0", "no address": "me:s3cret@"}
    monkeypatch.setenv("REDIS_URL", urls[fault])
    if fault == "away":
        server.kill()
    Home(home).create()
    done = as_person("doctor", "--repair")
    assert done.returncode == 5
    assert "s3cret" not in done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    (found,) = redis_findings(open_app(home)).values()
    assert "REDIS_URL" in found.remedy
    assert {"away": "is away", "refuses": "refuses user", "no address": "must look like"}[fault] in found.found


def test_there_is_nothing_to_forward_or_to_examine_where_the_spool_is_the_bus(home: Path) -> None:
    Home(home).create()
    done = as_person("bus", "forward")
    assert (done.returncode, done.stdout) == (2, "")
    assert "REDIS_URL" in done.stderr
    names = {check["name"] for check in json.loads(as_person("doctor", "--json").stdout)["checks"]}
    assert not {name for name in names if name.startswith("redis")}


def test_the_spool_has_a_status_too(home: Path) -> None:
    Home(home).create()
    topics = simic("bus", "status")
    assert [topic["transport"] for topic in topics] == [f"spool {home / 'data/spool'}"] * 2
    assert simic("bus", "dead-letters") == []
    assert simic("bus", "dead-letters", "--replay")["replayed"] == 0
