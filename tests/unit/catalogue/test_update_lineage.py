"""From reports to the update that they led to, and from an update to its reports, over both buses."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path

import pytest
from support.builders.judged_candidates import SIGNER
from support.builders.reports import BLUEPRINTS, EPOCH_ZERO, episode, episodes, line
from support.homes.lineage import FIRST, SECOND, judge, shelve_training
from support.homes.pipeline import NOW, PROVENANCE, TOPIC, FixedClock, curate_all, drop
from support.servers.redis_buses import stream_bus
from support.servers.redis_server import RedisProcess

from simic.bus.protocol import Bus
from simic.bus.redis.fallback import SpoolFallbackBus
from simic.bus.spool.bus import SpoolBus
from simic.catalogue.query import query
from simic.contracts.field_report import FieldReport
from simic.contracts.policy_update import ValidationSummary
from simic.contracts.settings.run import IngestConfig
from simic.contracts.splits import Split, split_of
from simic.ingestion.ingest import ingest
from simic.ledgers.policies import champion_versions
from simic.publication.publish import publish
from simic.runtime.home import Home
from simic.trust.keys import Keyring

TRAIN = [key for key in range(60) if split_of("benchmark", key) is Split.TRAIN][:2]
TEST = next(key for key in range(60) if split_of("benchmark", key) is Split.TEST)
SUMMARY = ValidationSummary(
    episodes=160, return_over_wait=6.0, lower_bound=5.0, confidence=0.95, gate_digest="a" * 64
)  # fmt: skip


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisProcess]:
    with RedisProcess(tmp_path_factory.mktemp("redis")) as process:
        yield process


@pytest.fixture(params=["spool", "redis"])
def opened(request: pytest.FixtureRequest) -> Callable[[Home], Bus]:
    if request.param == "spool":
        return lambda home: SpoolBus(home.spool)
    server: RedisProcess = request.getfixturevalue("server")
    return lambda home: SpoolFallbackBus(SpoolBus(home.spool), stream_bus(server), home.locks)


def acted(policy: str, hour: int, seed: int) -> list[FieldReport]:
    issued_at = EPOCH_ZERO + timedelta(hours=hour)
    return episodes(TRAIN, controller="learned", policy_version=policy, issued_at=issued_at, seed=seed)


def test_reports_lead_to_an_update_and_back(tmp_path: Path, opened: Callable[[Home], Bus]) -> None:
    home = Home(tmp_path)
    home.create()
    Keyring(home.keys).trust(SIGNER.public_bytes)
    bus = opened(home)

    def land(name: str, reports: list[FieldReport]) -> None:
        bus.put(TOPIC, name, map(line, reports))
        receipt = ingest(
            bus, home, IngestConfig(), frozenset(BLUEPRINTS), provenance=PROVENANCE, clock=FixedClock()
        )  # fmt: skip
        assert receipt.landed == len(reports)

    land("explored", [*episodes(TRAIN), *episode(TEST)])
    first = curate_all(home, clock=FixedClock(NOW + timedelta(hours=1)))
    shelve_training(home, FIRST, first, None, hour=2)
    land("round", acted(FIRST, 1, seed=1))
    second = curate_all(home, clock=FixedClock(NOW + timedelta(hours=3)))
    shelve_training(home, SECOND, second, FIRST, hour=4)
    judge(home, SECOND, second, number=1, accepted=True, hour=5)
    (champion,) = champion_versions(home)
    sent = publish(
        champion, SUMMARY, ("tamiyo",), bus=bus, signer=SIGNER, home=home, provenance=PROVENANCE,
        clock=lambda: EPOCH_ZERO + timedelta(hours=4),
    )  # fmt: skip
    land("before", acted(SECOND, 3, seed=2))
    land("production", acted(SECOND, 5, seed=3))

    (update,) = query(home, "FROM updates")
    assert (update["update_id"], update["correlation_id"]) == (sent.event_id, second.digest)
    assert (update["policy"], update["semantic_version"], update["targets"]) == (SECOND, "1.0.0", ["tamiyo"])
    led = query(
        home,
        "SELECT trained, correlation_id, acting_policy, list(run_id ORDER BY run_id) AS runs, sum(reports)::INT AS n "
        "FROM update_reports GROUP BY ALL ORDER BY trained, correlation_id",
    )
    explored = sorted(episode(key)[0].run_id for key in TRAIN)
    own = sorted({report.run_id for report in acted(FIRST, 1, seed=1)})
    assert [tuple(row.values()) for row in led] == [
        (FIRST, "explored", None, explored, 40),
        (SECOND, "explored", None, explored, 40),
        (SECOND, "round", FIRST, own, 40),
    ]
    ran = query(
        home,
        "SELECT correlation_id, policy, semantic_version, update_id, count(*) AS episodes FROM report_updates "
        "GROUP BY ALL ORDER BY correlation_id",
    )
    assert [tuple(row.values()) for row in ran] == [
        ("before", SECOND, "1.0.0", None, 2),
        ("production", SECOND, "1.0.0", sent.event_id, 2),
        ("round", FIRST, None, None, 2),
    ]


def test_reports_without_an_envelope_land_and_are_of_no_correlation(tmp_path: Path) -> None:
    home = Home(tmp_path)
    drop(home, "old", acted(FIRST, 1, seed=1))
    ingest(
        SpoolBus(home.spool), home, IngestConfig(), frozenset(BLUEPRINTS), provenance=PROVENANCE, clock=FixedClock()
    )  # fmt: skip
    (found,) = query(home, "SELECT count(*) AS n, count(correlation_id) AS known FROM reports")
    assert found == {"n": 40, "known": 0}
    (runs,) = query(home, "SELECT count(*) AS n, count(correlation_id) AS known FROM report_updates")
    assert runs == {"n": 2, "known": 0}
