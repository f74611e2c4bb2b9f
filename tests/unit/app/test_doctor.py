"""What is wrong is found and named; what a repair does loses nothing; what is lost is counted."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from support.builders.reports import episode, episodes
from support.homes.champion_homes import crowned_home, open_home
from support.homes.lakes import COUNT, maintenance, report_ids, shared_store
from support.homes.pipeline import PROVENANCE, TOPIC, FixedClock, curate_all, drop, ingest_all, land

from simic.app.checks.doctor import Doctor, open_doctor
from simic.app.checks.health import damaged
from simic.bus.factory import BusSpec
from simic.bus.spool.bus import SpoolBus
from simic.catalogue.query import query
from simic.contracts.errors import IntegrityError, TransientError
from simic.contracts.field_report import FieldReport
from simic.contracts.results.lake import Health, HealthReport
from simic.contracts.settings.run import IngestConfig
from simic.lake.lake import open_lake
from simic.lake.ownership import claim
from simic.lake.repair import RemovalResult, remove_part
from simic.registry.registry import Registry
from simic.runtime.home import Home
from simic.runtime.locks import exclusive
from simic.runtime.progress import NoProgress

IDS = sorted(report.report_id for report in episodes(range(3)))


@pytest.fixture
def home(tmp_path: Path) -> Home:
    """Three deliveries, three parts, one snapshot."""
    home = Home(tmp_path)
    for key in range(3):
        drop(home, f"e{key}", episode(key))
        ingest_all(home)
    curate_all(home)
    return home


def no_registry(_model: str) -> Registry:
    raise AssertionError("nothing was recorded here, so there is no reason to open the registry")


def examine(home: Home, *, deep: bool = False, repair: bool = False, **ingest: int) -> HealthReport:
    doctor = Doctor(
        home, SpoolBus(home.spool), no_registry, code_version=PROVENANCE.code_version, clock=FixedClock(),
        progress=NoProgress(), bus=BusSpec(home.spool, ingest=IngestConfig(**ingest)),
    )  # fmt: skip
    return doctor.examine(is_deep=deep, is_repair=repair)


def findings(report: HealthReport) -> dict[str, Health]:
    return {check.name: check.health for check in report.checks if check.health is not Health.HEALTHY}


def tree(home: Home) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in sorted(home.data.rglob("*")) if path.is_file()}


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize("deep", [False, True])
def test_a_sound_home_is_healthy_also_after_housekeeping(home: Home, deep: bool) -> None:
    assert findings(examine(home, deep=deep)) == {}
    maintenance(home).compact()
    maintenance(home).retain(max_bytes=0)
    before = tree(home)
    report = examine(home, deep=deep)
    assert report.is_healthy and findings(report) == {}
    assert {name: data for name, data in tree(home).items() if ".locks" not in name} == {
        name: data for name, data in before.items() if ".locks" not in name
    }


def test_an_empty_home_is_healthy(tmp_path: Path) -> None:
    assert examine(Home(tmp_path), deep=True, repair=True).is_healthy


def spoil(home: Home) -> dict[str, str]:
    """What killed runs leave behind."""
    with (home.ledger / "ingest.jsonl").open("ab") as file:
        file.write(b'{"part":"2026')
    orphan = home.experience / "2026-01-06" / "part-abc-0123456789abcdef.parquet"
    orphan.write_bytes(b"x")
    (home.tmp / "ingest").mkdir(parents=True, exist_ok=True)
    (home.tmp / "ingest" / "part-x.parquet").write_bytes(b"x")
    drop(home, "e9", episode(9))
    folder = home.spool / TOPIC
    (folder / "incoming" / "e9.jsonl").rename(folder / "claimed" / "e9.jsonl")
    return {"ledger ingest.jsonl": "torn", "orphans": "orphan", "unfinished files": "tmp", "spool": "claimed"}


def test_what_crashes_left_is_found_and_tidied_without_loss(home: Home) -> None:
    expected = dict.fromkeys(spoil(home), Health.REPAIRABLE)
    before = tree(home)
    report = examine(home)
    assert findings(report) == expected and not report.is_healthy
    after = tree(home)
    assert {n: after[n] for n in after if ".locks" not in n} == {n: before[n] for n in before if ".locks" not in n}
    repaired = examine(home, repair=True)
    assert findings(repaired) == dict.fromkeys(expected, Health.REPAIRED) and repaired.is_healthy
    assert findings(examine(home, deep=True)) == {}
    assert sorted(report_ids(home)) == IDS
    assert ingest_all(home).landed == 20


@pytest.mark.parametrize("harm", ["missing", "truncated", "changed"])
def test_a_damaged_part_is_taken_out_and_its_reports_land_again(home: Home, harm: str) -> None:
    part = open_lake(home).parts[1]
    path = home.experience / part.part
    content = path.read_bytes()
    if harm == "missing":
        path.unlink()
    elif harm == "truncated":
        path.write_bytes(content[:100])
    else:
        flip(path)
    deep = harm == "changed"
    name = f"part {part.part}"
    snapshot = f"snapshot {next(home.snapshots.iterdir()).name}"
    found = next(check for check in examine(home, deep=deep).checks if check.name == name)
    assert found.health is Health.DAMAGED and "20 rows" in found.found and "e1.jsonl" in found.found
    shared = {} if harm == "missing" else {snapshot: Health.REPAIRED}  # it holds the very file, under a second name
    repaired = {name: Health.REPAIRED, "deliveries": Health.REPAIRED, **shared}
    assert findings(examine(home, deep=deep, repair=True)) == repaired
    assert query(home, COUNT) == [{"n": 40, "d": 40}]
    assert (home.data / "damaged" / part.part).exists() == (harm != "missing")
    receipt = ingest_all(home)
    assert (receipt.landed, receipt.duplicate) == (20, 0)
    assert sorted(report_ids(home)) == IDS
    assert findings(examine(home, deep=True)) == {}
    assert open_lake(home).parts[2].part == part.part, "the same batch has the same name"
    assert maintenance(home).status().damaged_rows == 20


def test_a_store_that_is_elsewhere_is_said_and_nothing_is_taken_out(home: Home) -> None:
    away = home.experience.rename(home.data / "unmounted")
    home.experience.mkdir()
    report = examine(home, repair=True)
    assert findings(report) == {"parts": Health.DAMAGED}
    assert "3 of 3 parts are not in" in next(
        check.found for check in report.checks if check.name == "parts" and check.found
    )
    assert len(open_lake(home).parts) == 3 and not open_lake(home).state.damaged
    home.experience.rmdir()
    away.rename(home.experience)
    assert findings(examine(home, deep=True)) == {}


def test_a_damaged_merged_part_asks_for_all_its_deliveries(home: Home) -> None:
    maintenance(home).compact()
    maintenance(home).vacuum(grace_minutes=0)
    next(home.experience.glob("*/*.parquet")).unlink()
    assert set(findings(examine(home, repair=True)).values()) == {Health.REPAIRED}
    assert ingest_all(home).landed == 60
    assert sorted(report_ids(home)) == IDS


def test_a_merged_part_asks_for_the_deliveries_it_does_not_name_too(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Merged twice, with room for one name: all are found by way of the lines of the ledger that landed them."""
    monkeypatch.setattr("simic.lake.compaction.MOST_SOURCES", 1)
    maintenance(home).compact()
    drop(home, "e3", episode(3))
    ingest_all(home)
    maintenance(home).compact()
    maintenance(home).vacuum(grace_minutes=0)
    (part,) = open_lake(home).parts
    assert part.sources == ["e0.jsonl"]
    flip(home.experience / part.part)
    assert "e0.jsonl, e1.jsonl, e2.jsonl, e3.jsonl" in next(
        check.found for check in examine(home, deep=True).checks if check.health is Health.DAMAGED
    )
    assert set(findings(examine(home, deep=True, repair=True)).values()) == {Health.REPAIRED}
    assert open_lake(home).state.damaged[0].requeued == [f"e{key}.jsonl" for key in range(4)]
    assert ingest_all(home).landed == 80
    assert query(home, COUNT) == [{"n": 80, "d": 80}]


def test_of_a_merged_part_only_what_cannot_be_had_again_is_lost(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("simic.lake.compaction.MOST_SOURCES", 1)
    maintenance(home).compact()
    (home.experience / open_lake(home).parts[0].part).unlink()
    (home.spool / TOPIC / "done" / "e1.jsonl").unlink()
    report = examine(home, repair=True)
    lost = next(check for check in report.checks if check.health is Health.LOST)
    assert "e1.jsonl" in lost.remedy and "up to 20 rows are lost" in lost.remedy and not report.is_healthy
    assert ingest_all(home).landed == 40


def test_what_cannot_be_had_again_is_counted(home: Home) -> None:
    part = open_lake(home).parts[0]
    (home.experience / part.part).unlink()
    (home.spool / TOPIC / "done" / "e0.jsonl").unlink()
    report = examine(home, repair=True)
    lost = next(check for check in report.checks if check.health is Health.LOST)
    assert "e0.jsonl" in lost.remedy and "up to 20 rows are lost" in lost.remedy and not report.is_healthy
    assert open_lake(home).state.damaged[0].missing == ["e0.jsonl"]
    assert findings(examine(home)) == {}, "said once, kept in the ledger"


@pytest.mark.parametrize("is_landed", [True, False])
def test_another_delivery_of_the_same_name_is_not_the_lost_one(tmp_path: Path, is_landed: bool) -> None:
    """The name of a file that a person puts there says nothing about its lines."""
    home = Home(tmp_path / "home")
    drop(home, "reports", episode(0))
    ingest_all(home)
    (home.spool / TOPIC / "done" / "reports.jsonl").unlink()
    drop(home, "reports", episode(1))
    if is_landed:
        ingest_all(home)
    flip(home.experience / open_lake(home).parts[0].part)
    report = examine(home, deep=True, repair=True)
    lost = next(check for check in report.checks if check.health is Health.LOST)
    assert "reports.jsonl" in lost.remedy and "up to 20 rows are lost" in lost.remedy and not report.is_healthy
    line = open_lake(home).state.damaged[0]
    assert (line.requeued, line.missing) == ([], ["reports.jsonl"])
    assert (home.spool / TOPIC / ("done" if is_landed else "incoming") / "reports.jsonl").exists()
    assert ingest_all(home).landed == (0 if is_landed else 20)


def test_a_delivery_of_many_parts_and_of_lines_that_did_not_land_is_found_again(home: Home) -> None:
    """Each part knows its own lines of the file, refused ones and duplicates included."""
    rows: list[FieldReport | bytes] = list(episode(7))
    drop(home, "long", [*rows[:3], b"{", *episode(0)[:2], *rows[3:]])
    assert len(ingest_all(home, batch_reports=5).parts) == 5
    for part in open_lake(home).parts[-2:]:
        flip(home.experience / part.part)
    assert set(findings(examine(home, deep=True, repair=True)).values()) == {Health.REPAIRED}
    assert ingest_all(home).landed == 8
    assert query(home, COUNT) == [{"n": 80, "d": 80}]


def test_a_delivery_whose_writer_finished_its_last_line_later_is_found_again(tmp_path: Path) -> None:
    home = Home(tmp_path / "home")
    whole = drop(home, "a", episode(0)).read_bytes()
    drop(home, "a", episode(0)).write_bytes(whole[:-100])
    assert ingest_all(home).reasons == {"malformed_json": 1}
    (home.spool / TOPIC / "done" / "a.jsonl").write_bytes(whole)
    flip(home.experience / open_lake(home).parts[0].part)
    assert set(findings(examine(home, deep=True, repair=True)).values()) == {Health.REPAIRED}
    assert ingest_all(home).landed == 20


@pytest.mark.parametrize("setting, health", [(2**20, Health.REPAIRED), (262_144, Health.LOST)])
def test_a_span_without_a_limit_of_a_line_means_the_present_setting(
    tmp_path: Path, setting: int, health: Health
) -> None:
    home = Home(tmp_path / "home")
    rows: list[FieldReport | bytes] = list(episode(0))
    drop(home, "long", [*rows[:5], b"x" * 300_000, *rows[5:]])
    ingest_all(home, max_report_bytes=2**20)
    ledger = home.ledger / "ingest.jsonl"
    ledger.write_bytes(ledger.read_bytes().replace(b'"limit_bytes":1048576,', b""))
    flip(home.experience / open_lake(home).parts[0].part)
    report = examine(home, deep=True, repair=True, max_report_bytes=setting)
    (part,) = (check for check in report.checks if check.name.startswith("part "))
    assert part.health is health
    remedies = [check.remedy for check in report.checks if check.name == "deliveries"]
    expected = "`simic ingest` lands them, unless ingest.max_report_bytes was lowered since they landed"
    assert remedies == ([expected] if health is Health.REPAIRED else [])


def test_a_repair_does_not_promise_what_it_cannot_know_of_deliveries_with_names_of_their_own(tmp_path: Path) -> None:
    """The ledger has no spans of them, so it does not say how long their lines may have been."""
    home = Home(tmp_path / "home")
    SpoolBus(home.spool).put(TOPIC, "own", [row.model_dump_json().encode() for row in episode(0)])
    ingest_all(home, max_report_bytes=2**20)
    flip(home.experience / open_lake(home).parts[0].part)
    report = examine(home, deep=True, repair=True, max_report_bytes=1024)
    (found,) = (check for check in report.checks if check.name == "deliveries")
    assert found.remedy.endswith("unless ingest.max_report_bytes was lowered since they landed")
    assert ingest_all(home, max_report_bytes=1024).landed == 0


def test_a_known_limit_counts_also_beside_a_delivery_without_one(tmp_path: Path) -> None:
    home = Home(tmp_path / "home")
    SpoolBus(home.spool).put(TOPIC, "own", [row.model_dump_json().encode() for row in episode(0)])
    drop(home, "long", episode(1))
    ingest_all(home, max_report_bytes=2**20)
    for part in open_lake(home).parts:
        flip(home.experience / part.part)
    report = examine(home, deep=True, repair=True, max_report_bytes=1024)
    (found,) = (check for check in report.checks if check.name == "deliveries")
    assert found.remedy.startswith("`simic ingest -o ingest.max_report_bytes=1048576` lands them, unless ")
    assert ingest_all(home, max_report_bytes=1_048_576).landed == 40


def test_a_repair_that_the_store_ends_early_says_how_the_parts_so_far_land(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next repair finds no trace of them, so nobody else could say it."""
    first, *_, last = open_lake(home).parts
    for part in (last, first):
        flip(home.experience / part.part)
    calls = iter((remove_part, None))

    def once(*arguments: Any, **named: Any) -> RemovalResult:
        if (remove := next(calls)) is None:
            raise TransientError("the store is away")
        return remove(*arguments, **named)

    monkeypatch.setattr("simic.app.checks.doctor.remove_part", once)
    found = {check.name: check for check in examine(home, deep=True, repair=True).checks}
    assert "`simic ingest` lands them" in (found["deliveries"].remedy or "")
    assert found["store"].health is Health.DAMAGED


def test_where_the_limit_of_a_line_was_lowered_the_repair_says_with_which_the_reports_land(home: Home) -> None:
    drop(home, "later", episode(7))
    ingest_all(home, max_report_bytes=2**20)
    first, *_, last = open_lake(home).parts
    for part in (last, first):
        flip(home.experience / part.part)
    report = examine(home, deep=True, repair=True, max_report_bytes=1024)
    (found,) = (check for check in report.checks if check.name == "deliveries")
    assert "`simic ingest -o ingest.max_report_bytes=1048576` lands them" in found.remedy
    assert ingest_all(home, max_report_bytes=1_048_576).landed == 40


def test_a_kill_between_asking_again_and_taking_out_is_made_good(home: Home) -> None:
    """The deliveries are back, the part is still listed: they are dropped as told before, and asked for once more."""
    part = open_lake(home).parts[0]
    (home.experience / part.part).write_bytes(b"")
    assert SpoolBus(home.spool).requeue(TOPIC, "e0.jsonl")
    examine(home, repair=True)
    assert ingest_all(home).landed == 20
    assert sorted(report_ids(home)) == IDS


def test_lost_ids_of_dropped_reports_are_named_and_do_not_stop_the_lake(home: Home) -> None:
    maintenance(home).retain(max_bytes=0)
    next(home.ids.iterdir()).unlink()
    with pytest.raises(IntegrityError, match="simic doctor"):
        ingest_all(home)
    report = examine(home)
    assert findings(report) == {"dropped ids": Health.DAMAGED}
    assert "60 ids" in next(check.found for check in report.checks if check.name == "dropped ids")
    assert findings(examine(home, repair=True)) == {"dropped ids": Health.LOST}
    drop(home, "new", episode(7))
    assert ingest_all(home).landed == 20


def test_a_damaged_ledger_is_named_and_nothing_is_judged_by_it(home: Home) -> None:
    ledger = home.ledger / "ingest.jsonl"
    ledger.write_bytes(b"{\n" + ledger.read_bytes())
    files = set(home.experience.rglob("*.parquet"))
    report = examine(home, repair=True)
    assert findings(report) == {"ledger ingest.jsonl": Health.DAMAGED, "parts": Health.DAMAGED}
    assert set(home.experience.rglob("*.parquet")) == files


@pytest.mark.parametrize(("harm", "deep"), [("gone", False), ("changed", True), ("manifest", False)])
def test_a_damaged_snapshot_is_moved_aside(home: Home, harm: str, deep: bool) -> None:
    (snapshot,) = home.snapshots.iterdir()
    if harm == "gone":
        (snapshot / "steps.parquet").unlink()
    elif harm == "changed":
        flip(snapshot / "steps.parquet")
    else:
        (snapshot / "manifest.json").write_bytes(b"{")
    name = f"snapshot {snapshot.name}"
    assert findings(examine(home, deep=deep)) == {name: Health.DAMAGED}
    assert findings(examine(home, deep=deep, repair=True)) == {name: Health.REPAIRED}
    assert [path.name[:16] for path in (home.data / "damaged").iterdir()] == [snapshot.name]
    assert curate_all(home).path == str(snapshot)


def test_a_manifest_with_very_many_faults_is_moved_aside_and_reported(home: Home) -> None:
    (snapshot,) = home.snapshots.iterdir()
    (snapshot / "manifest.json").write_text(json.dumps({f"unknown_{number}": 0 for number in range(500)}))
    check = next(check for check in examine(home, repair=True).checks if check.name == f"snapshot {snapshot.name}")
    assert check.health is Health.REPAIRED and "is not a manifest: code_version: Field required" in check.found
    assert not snapshot.exists()


def test_a_finding_of_any_length_is_cut_to_what_a_report_may_hold() -> None:
    assert len(damaged("name", "x" * 100_000, "remedy").found) == 4096


def test_while_an_ingest_is_at_work_its_files_are_not_judged_and_nothing_is_repaired(home: Home) -> None:
    spoil(home)
    with exclusive(home.locks / "ingest", "ingest"):
        assert findings(examine(home)) == {}
        with pytest.raises(TransientError, match="busy"):
            examine(home, repair=True)


def test_what_a_producer_is_forwarding_to_redis_is_not_judged(home: Home) -> None:
    drop(home, "e9", episode(9))
    incoming, claimed = home.spool / TOPIC / "incoming" / "e9.jsonl", home.spool / TOPIC / "claimed" / "e9.jsonl"
    incoming.rename(claimed)
    with exclusive(home.spool / ".locks" / f"spill-{TOPIC}", "forwarding"):
        assert findings(examine(home)) == findings(examine(home, repair=True)) == {}
        assert claimed.exists() and not incoming.exists()
    assert findings(examine(home)) == {"spool": Health.REPAIRABLE}
    assert findings(examine(home, repair=True)) == {"spool": Health.REPAIRED}
    assert incoming.exists()


def test_an_open_promotion_is_left_to_the_next_command_unless_it_is_to_be_repaired(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    home = crowned_home(tmp_path / "place", tmp_path_factory)
    journal = home.ledger / "promotions.jsonl"
    journal.write_bytes(b"".join(journal.read_bytes().splitlines(keepends=True)[:7]))
    listed = home.ledger / "policies.jsonl"
    listed.write_bytes(listed.read_bytes().splitlines(keepends=True)[0])
    before = journal.read_bytes(), listed.read_bytes()
    assert findings(open_doctor(open_home(home)).examine()) == {"champion": Health.REPAIRABLE}
    assert (journal.read_bytes(), listed.read_bytes()) == before
    repaired = open_doctor(open_home(home)).examine(is_repair=True)
    assert findings(repaired) == {"champion": Health.REPAIRED}
    assert findings(open_doctor(open_home(home)).examine(is_deep=True)) == {}


def test_a_list_that_a_killed_process_left_short_is_repairable(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    home = crowned_home(tmp_path / "place", tmp_path_factory)
    listed = home.ledger / "policies.jsonl"
    whole = listed.read_bytes()
    listed.write_bytes(whole.splitlines(keepends=True)[0])
    assert findings(open_doctor(open_home(home)).examine()) == {"list of champions": Health.REPAIRABLE}
    assert findings(open_doctor(open_home(home)).examine(is_repair=True)) == {"list of champions": Health.REPAIRED}
    assert listed.read_bytes() == whole


def test_parts_of_another_contract_are_named(home: Home) -> None:
    lake = open_lake(home)
    lines = lake.ledger.path.read_text().splitlines()
    changed = lake.parts[0].model_copy(update={"schema_digest": "0" * 64}).model_dump_json()
    lake.ledger.path.write_text("\n".join([changed, *lines[1:]]) + "\n")
    assert "contracts" in findings(examine(home))


def test_whatever_was_claimed_is_put_back_be_it_no_file(home: Home) -> None:
    folder = home.spool / TOPIC
    (folder / "claimed" / "d.jsonl").mkdir()
    os.mkfifo(folder / "claimed" / "f.jsonl")
    (folder / "claimed" / "l.jsonl").symlink_to("nowhere")
    assert findings(examine(home, repair=True)) == {"spool": Health.REPAIRED}
    assert sorted(path.name for path in (folder / "incoming").iterdir()) == ["d.jsonl", "f.jsonl", "l.jsonl"]
    assert findings(examine(home)) == {}
    assert ingest_all(home).reasons == {"unreadable": 3}


def test_what_cannot_be_put_back_is_not_called_repaired(home: Home) -> None:
    folder = home.spool / TOPIC
    (folder / "claimed" / "d.jsonl").mkdir()
    (folder / "incoming").rmdir()
    (folder / "incoming").symlink_to(folder / "claimed" / "d.jsonl")  # a directory does not move into itself
    report = examine(home, repair=True)
    assert findings(report) == {"spool": Health.DAMAGED}
    assert "cannot be moved: d.jsonl" in next(check.found for check in report.checks if check.name == "spool")


def test_examining_an_empty_home_makes_no_spool(tmp_path: Path) -> None:
    home = Home(tmp_path / "empty")
    examine(home)
    assert not home.spool.exists()


def test_temporary_files_of_killed_writers_are_found_after_a_day_and_removed(home: Home) -> None:
    home.prefect.mkdir()
    home.keys.mkdir()
    left = [folder / ".x.json.0123456789ab.tmp" for folder in (home.ledger, home.keys, home.prefect, home.mlruns)]
    for path in left:
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"half")
    others = [home.ledger / ".x.json.tmp", home.ledger / "x.0123456789ab.tmp"]
    for path in others:
        path.write_bytes(b"")
    assert findings(examine(home, repair=True)) == {}, "their writers may be at work"
    for path in (*left, *others):
        os.utime(path, (0, 0))
    report = examine(home)
    assert findings(report) == {"temporary files": Health.REPAIRABLE}
    told = next(check.found for check in report.checks if check.name == "temporary files")
    assert "data/keys/.x.json.0123456789ab.tmp" in told
    assert all(path.exists() for path in left)
    assert findings(examine(home, repair=True)) == {"temporary files": Health.REPAIRED}
    assert [path.exists() for path in (*left, *others)] == [False] * 4 + [True] * 2
    assert findings(examine(home)) == {}


def test_files_set_aside_are_counted_and_found_until_a_person_moves_them(home: Home) -> None:
    (home.spool / TOPIC / "incoming" / "x.jsonl.zst").write_bytes(b"no zstd")
    ingest_all(home)
    assert SpoolBus(home.spool).status(TOPIC).aside == 1
    name = f"unreadable files of {TOPIC}"
    for repair in (False, True):
        report = examine(home, repair=repair)
        assert findings(report) == {name: Health.DAMAGED}
        (check,) = (check for check in report.checks if check.name == name)
        assert "1 file in" in check.found and "aside: x.jsonl.zst" in check.found and "quarantine" in check.remedy
    (home.spool / TOPIC / "aside" / "x.jsonl.zst").unlink()
    assert findings(examine(home)) == {}
    assert SpoolBus(home.spool).status(TOPIC).aside == 0


def test_beside_a_writer_of_the_same_home_the_doctor_does_not_report_a_copy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The writer claims between the doctor's look at the store and its look at the home, or the other way round."""
    store = shared_store(tmp_path, monkeypatch)
    home = Home(tmp_path / "a", "s3://bucket/prefix")
    land(home, episode(1))
    look = store.claims

    def look_slowly(*, is_first: bool) -> set[str]:
        monkeypatch.setattr(store, "claims", look)
        found = look() if is_first else set()
        claim(home, store)
        return found if is_first else look()

    for is_first in (True, False):
        monkeypatch.setattr(store, "claims", lambda is_first=is_first: look_slowly(is_first=is_first))
        assert findings(examine(home)) == {}
    store.add_claim(f"{(home.ledger / 'home.id').read_text()}.other")
    assert findings(examine(home)) == {"store": Health.DAMAGED}


def test_a_repair_does_not_claim_a_prefix_before_the_first_part(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = shared_store(tmp_path, monkeypatch)
    home = Home(tmp_path / "a", "s3://bucket/prefix")
    home.create()
    assert examine(home, repair=True).is_healthy
    assert not store.claims() and open_lake(home).state.url is None
