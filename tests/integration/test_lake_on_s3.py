"""The whole way from spool to snapshot and SQL with the parts on a real S3 server."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest
from support.builders.reports import BLUEPRINTS, episode, episodes
from support.builders.snapshots import told_rows
from support.homes.lakes import COUNT, maintenance
from support.homes.pipeline import NOW, PROVENANCE, TOPIC, FixedClock, curate_all, drop, ingest_all, land
from support.servers.s3_server import S3Server, s3_server

from simic.app.checks.doctor import Doctor
from simic.bus.spool.bus import SpoolBus
from simic.catalogue.query import query
from simic.contracts.errors import ConfigError, IntegrityError, TransientError
from simic.contracts.results.lake import Health
from simic.contracts.settings.run import IngestConfig
from simic.ingestion.ingest import ingest
from simic.lake.duck import connect
from simic.lake.duck_views import attach_parts
from simic.lake.lake import open_lake
from simic.lake.store import ArrowParts
from simic.runtime.home import Home
from simic.runtime.progress import NoProgress

__all__ = ["s3_server"]


@pytest.fixture
def home(tmp_path: Path, s3_server: S3Server) -> Iterator[Home]:
    yield Home(tmp_path / "home", s3_server.url)


def test_ingest_curate_sql_and_housekeeping_are_as_on_disk(home: Home, s3_server: S3Server, tmp_path: Path) -> None:
    local = Home(tmp_path / "local")
    learned_from = []
    for place in (home, local):
        land(place, episodes(range(6)), batch_reports=25)
        drop(place, "again", [*episode(2), *episode(7), b"{"])
        receipt = ingest_all(place)
        assert (receipt.landed, receipt.duplicate, receipt.quarantined) == (20, 20, 1)
        assert query(place, COUNT) == [{"n": 140, "d": 140}]
        assert query(place, "SELECT count(*) AS n FROM steps WHERE op = 'FOSSILIZE' AND host_key < 3") == [{"n": 3}]
        first = curate_all(place)
        merged = maintenance(place).compact()
        assert (merged.merges, merged.parts_before, merged.parts_after, merged.rows) == (1, 6, 1, 140)
        assert curate_all(place).digest == first.digest
        assert query(place, COUNT) == [{"n": 140, "d": 140}]
        learned_from.append((first.digest, told_rows(first, "state", "final_state", "available", "action")))
    assert learned_from[0] == learned_from[1], "where parts lie decides over no row"
    assert not home.experience.exists()
    assert len(s3_server.names()) == 7, "six merged parts wait for their readers, beside the new one"
    assert maintenance(home, FixedClock(NOW + timedelta(hours=2))).vacuum().files == 6
    assert s3_server.names() == [part.part for part in open_lake(home).parts]
    assert maintenance(home).retain(max_bytes=0).rows == 140
    drop(home, "told-again", episode(2))
    assert ingest_all(home).duplicate == 20
    assert query(home, COUNT) == [{"n": 0, "d": 0}]


def test_only_the_columns_and_rows_asked_for_are_read(home: Home, tmp_path: Path) -> None:
    land(home, episodes(range(3)))
    with connect(tmp=tmp_path / "tmp", memory_limit_mb=256, threads=1) as connection:
        attach_parts(connection, "landed", open_lake(home))
        plan = connection.execute("EXPLAIN SELECT run_id FROM landed WHERE step >= 12").fetchall()[0][1]
        assert connection.execute("SELECT count(*) FROM landed WHERE step >= 12").fetchall() == [(24,)]
    assert "run_id" in plan and "step" in plan and "ARROW_SCAN" in plan and "FILTER" not in plan.replace("Filters", "")
    assert "state" not in plan


def test_queries_on_s3_still_only_read(home: Home) -> None:
    land(home, episode(1))
    home.keys.mkdir(parents=True, exist_ok=True)
    (home.keys / "signing.key").write_bytes(b"secret")
    for sql in (f"FROM read_text('{home.keys}/signing.key')", "CREATE TABLE x (a INT)", "SET threads = 4"):
        with pytest.raises(ConfigError):
            query(home, sql)


def test_a_store_that_is_away_is_transient_and_nothing_is_lost(home: Home, s3_server: S3Server) -> None:
    land(home, episodes(range(2)), batch_reports=25)
    held = s3_server.save()
    s3_server.kill()
    drop(home, "more", episodes(range(5, 8)))
    with pytest.raises(TransientError, match="try again"):
        ingest_all(home)
    with pytest.raises(TransientError, match=r"does not answer|cannot"):
        query(home, COUNT)
    with pytest.raises(TransientError, match="cannot"):
        curate_all(home)
    with pytest.raises(TransientError, match="cannot"):
        maintenance(home).compact()
    assert SpoolBus(home.spool).pending(TOPIC) == 1
    s3_server.start()
    s3_server.restore(held)
    assert ingest_all(home).landed == 60
    assert query(home, COUNT) == [{"n": 100, "d": 100}]
    assert SpoolBus(home.spool).pending(TOPIC) == 0


def test_killed_while_it_takes_a_part(home: Home, s3_server: S3Server) -> None:
    """The upload fails between the part's last byte here and its first byte there; the delivery comes again."""

    drop(home, "a", episodes(range(2)))
    bus = SpoolBus(home.spool)

    def die(point: str) -> None:
        if point == "part-written":
            s3_server.kill()

    with pytest.raises(TransientError, match=r"cannot write 2026-"):
        ingest(
            bus, home, IngestConfig(), frozenset(BLUEPRINTS), provenance=PROVENANCE, clock=FixedClock(), checkpoint=die
        )
    assert (open_lake(home).parts, bus.pending(TOPIC)) == ((), 1)
    s3_server.start()
    assert ingest_all(home).landed == 40
    assert query(home, COUNT) == [{"n": 40, "d": 40}]


def test_the_ledger_knows_where_the_parts_are(home: Home, s3_server: S3Server) -> None:
    land(home, episode(1))
    unnamed = Home(home.root)
    assert query(unnamed, COUNT) == [{"n": 20, "d": 20}]
    moved = Home(home.root, s3_server.url.replace("/lake?", "/elsewhere?"))
    with pytest.raises(ConfigError, match="does not move"):
        query(moved, COUNT)
    local = Home(home.root.with_name("local"))
    land(local, episode(1))
    with pytest.raises(ConfigError, match="does not move"):
        query(Home(local.root, s3_server.url), COUNT)


def test_a_missing_object_is_named(home: Home, s3_server: S3Server) -> None:
    land(home, episode(1))
    name = open_lake(home).parts[0].part
    open_lake(home).store.delete(name)
    with pytest.raises(IntegrityError, match=name):
        query(home, "SELECT sum(step) FROM reports")
    with pytest.raises(IntegrityError, match=name):
        curate_all(home)


def test_the_doctor_mends_a_lake_on_s3(home: Home, s3_server: S3Server) -> None:
    drop(home, "a", episode(1))
    ingest_all(home)
    drop(home, "b", episode(2))
    ingest_all(home)
    lake = open_lake(home)
    first, second = (part.part for part in lake.parts)
    lake.store.delete(first)
    with s3_server.client().open_output_stream(f"experience/lake/{second}") as sink:
        sink.write(b"short")
    orphan = "day=2026-01-06/part-abc-0123456789abcdef.parquet"
    with s3_server.client().open_output_stream(f"experience/lake/{orphan}") as sink:
        sink.write(b"x")
    doctor = Doctor(
        home, SpoolBus(home.spool), lambda _: None, code_version="x", clock=FixedClock(), progress=NoProgress()
    )  # fmt: skip
    found = {check.name: check.health for check in doctor.examine().checks if check.health is not Health.HEALTHY}
    assert found == {
        "orphans": Health.REPAIRABLE, f"part {first}": Health.DAMAGED, f"part {second}": Health.DAMAGED,
    }  # fmt: skip
    assert doctor.examine(is_repair=True).is_healthy
    assert s3_server.names() == sorted([f"damaged/{orphan}", f"damaged/{second}"])
    assert ingest_all(home).landed == 40
    assert doctor.examine(is_deep=True).is_healthy
    assert query(home, COUNT) == [{"n": 40, "d": 40}]
    s3_server.kill()
    away = {check.name: check.health for check in doctor.examine().checks}
    assert away["store"] is Health.DAMAGED, "said, not raised: everything else was looked at"


def test_a_copied_home_is_refused_once_the_other_wrote_and_the_doctor_says_so(home: Home, s3_server: S3Server) -> None:
    land(home, episode(1))
    copy = Home(shutil.copytree(home.root, home.root.with_name("copy")), home.lake_url)
    land(copy, episode(2))
    held = s3_server.save()
    with pytest.raises(IntegrityError, match="written by a copy of"):
        land(home, episode(3))
    for repair in (False, True):
        doctor = Doctor(
            home, SpoolBus(home.spool), lambda _: None, code_version="x", clock=FixedClock(), progress=NoProgress()
        )  # fmt: skip
        found = {check.name: check for check in doctor.examine(is_repair=repair).checks}
        assert found["store"].health is Health.DAMAGED and "written by a copy of" in found["store"].found
    assert s3_server.save() == held, "nothing of the copy was touched"
    assert query(home, COUNT) == [{"n": 20, "d": 20}], "reading goes on"
    land(copy, episode(4))
    assert query(copy, COUNT) == [{"n": 60, "d": 60}]


def test_of_two_copies_that_claim_at_once_the_second_withdraws(
    home: Home, s3_server: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The home claims and lands between the check and the claim of its copy."""
    land(home, episode(1))
    copy = Home(shutil.copytree(home.root, home.root.with_name("copy")), home.lake_url)
    add = ArrowParts.add_claim

    def add_after_the_other(store: ArrowParts, name: str) -> None:
        monkeypatch.setattr(ArrowParts, "add_claim", add)
        land(home, episode(2))
        add(store, name)

    monkeypatch.setattr(ArrowParts, "add_claim", add_after_the_other)
    with pytest.raises(IntegrityError, match="written by a copy of"):
        land(copy, episode(3))
    assert s3_server.names() == sorted(part.part for part in open_lake(home).parts)
    land(home, episode(4))
    assert query(home, COUNT) == [{"n": 60, "d": 60}]
