"""What is dropped is gone from the lake, known for a while, and deleted only when nobody can be reading it."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.builders.reports import episode, episodes, plain
from support.homes.lakes import COUNT, maintenance, report_ids, stored
from support.homes.pipeline import NOW, FixedClock, curate_all, drop, ingest_all, land

from simic.catalogue.query import query
from simic.contracts.errors import IntegrityError
from simic.lake.lake import open_lake, write_ids
from simic.runtime.home import Home
from simic.snapshots.manifest import read_manifest


@pytest.fixture
def home(tmp_path: Path) -> Home:
    """Episode 0 landed a day before episodes 1 and 2; a part each."""
    home = Home(tmp_path)
    for key, days in ((0, 1), (1, 0), (2, 0)):
        drop(home, f"e{key}", episode(key))
        ingest_all(home, clock=FixedClock(NOW - timedelta(days=days) + timedelta(minutes=key)))
    return home


def ids(*keys: int) -> list[str]:
    return [report.report_id for report in episodes(keys)]


def test_old_parts_go_by_age(home: Home) -> None:
    done = maintenance(home).retain(max_age_days=0.9)
    assert (done.parts_by_age, done.parts_by_bytes, done.rows, done.parts_left) == (1, 0, 20, 2)
    assert report_ids(home) == ids(1, 2)
    assert maintenance(home).retain(max_age_days=0.9).rows == 0


def test_the_oldest_go_by_bytes_until_the_rest_fits(home: Home) -> None:
    sizes = [part.size_bytes for part in open_lake(home).parts]
    assert maintenance(home).retain(max_bytes=sum(sizes)).parts_by_bytes == 0
    done = maintenance(home).retain(max_bytes=sizes[2] + sizes[1] - 1)
    assert (done.parts_by_bytes, done.size_bytes, done.size_bytes_left) == (2, sizes[0] + sizes[1], sizes[2])
    assert report_ids(home) == ids(2)
    assert maintenance(home).retain(max_bytes=0).rows == 20
    assert query(home, COUNT) == [{"n": 0, "d": 0}]


def test_the_folder_of_ids_is_durable_in_its_parent(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[Path] = []
    monkeypatch.setattr("simic.lake.lake.fsync_dir", synced.append)
    lake = open_lake(home)
    write_ids(lake, lake.parts[:1], home.ids / "dropped-0.parquet")
    assert home.data in synced
    synced.clear()
    write_ids(lake, lake.parts[1:], home.ids / "dropped-1.parquet")
    assert home.data not in synced, "it was there"


def test_dropped_reports_do_not_come_back_as_new(home: Home) -> None:
    """Neither whole nor changed; not even when their files are gone."""
    maintenance(home).retain(max_age_days=0.9)
    maintenance(home).vacuum(grace_minutes=0)
    spoilt = {**plain(episode(0)[3]), "outcome": "SUCCESS"}
    drop(home, "again", [*episode(0), spoilt])
    receipt = ingest_all(home)
    assert (receipt.landed, receipt.duplicate, receipt.reasons) == (0, 20, {"conflict": 1})
    assert report_ids(home) == ids(1, 2)


def swap_ids(path: Path) -> None:
    """A sound file with other ids: no reader of Parquet notices."""
    table = pq.read_table(path)
    others = pa.array([f"x{name}" for name in table["report_id"].to_pylist()], table["report_id"].type)
    pq.write_table(table.set_column(table.column_names.index("report_id"), "report_id", others), path)


def test_ids_of_dropped_reports_are_believed_only_as_committed(home: Home) -> None:
    maintenance(home).retain(max_age_days=0.9)
    swap_ids(next(home.ids.iterdir()))
    drop(home, "again", episode(0))
    with pytest.raises(IntegrityError, match=r"dropped-.*expected SHA-256.*simic doctor"):
        ingest_all(home)
    assert report_ids(home) == ids(1, 2)


def test_ids_of_a_changed_part_are_not_kept(home: Home) -> None:
    swap_ids(home.experience / open_lake(home).parts[0].part)
    with pytest.raises(IntegrityError, match="simic doctor"):
        maintenance(home).retain(max_age_days=0.9)
    assert len(open_lake(home).parts) == 3 and not home.ids.exists()


def test_what_is_forgotten_comes_back(home: Home) -> None:
    maintenance(home).retain(max_age_days=0.9)
    assert maintenance(home).status().remembered_ids == 20
    later = FixedClock(NOW + timedelta(days=31))
    assert maintenance(home, later, remember_days=32).vacuum().forgotten_ids == 0
    assert maintenance(home, later, remember_days=30).vacuum().forgotten_ids == 20
    assert not list(home.ids.iterdir())
    drop(home, "again", episode(0))
    assert ingest_all(home).landed == 20


def test_files_stay_for_those_who_read_and_go_after_the_time_of_grace(home: Home) -> None:
    files = stored(home)
    maintenance(home).retain(max_age_days=0.9)
    ingest_all(home)
    assert stored(home) == files
    early = maintenance(home, FixedClock(NOW + timedelta(minutes=59)), grace_minutes=60).vacuum()
    assert (early.files, early.waiting) == (0, 1)
    late = maintenance(home, FixedClock(NOW + timedelta(minutes=61)), grace_minutes=60).vacuum()
    assert (late.files, late.waiting) == (1, 0)
    assert stored(home) == {part.part for part in open_lake(home).parts}


def test_snapshots_outlive_the_parts_they_were_made_of(home: Home) -> None:
    snapshot = curate_all(home)
    maintenance(home).retain(max_bytes=0)
    maintenance(home).vacuum(grace_minutes=0)
    assert read_manifest(Path(snapshot.path)).rows_out == 60


def test_a_configured_bound_holds_at_every_ingest_and_none_holds_unasked(home: Home) -> None:
    maintenance(home, FixedClock(NOW + timedelta(days=3000))).run_due()
    assert len(open_lake(home).parts) == 3
    maintenance(home, max_age_days=0.9).run_due()
    assert report_ids(home) == ids(1, 2)


def test_a_clock_far_ahead_lets_nothing_go_unasked(home: Home, caplog: pytest.LogCaptureFixture) -> None:
    maintenance(home, max_age_days=0.9).run_due()
    ahead = FixedClock(NOW + timedelta(days=400))
    maintenance(home, ahead, max_age_days=0.9, remember_days=30).run_due()
    assert "nothing is dropped by age now" in caplog.text
    assert report_ids(home) == ids(1, 2) and maintenance(home).status().remembered_ids == 20
    maintenance(home, FixedClock(NOW + timedelta(days=2)), max_age_days=0.9).run_due()
    assert report_ids(home) == []


def test_drl_04_landed_rows_never_change_and_a_correction_is_an_appended_event(home: Home) -> None:
    """DRL-04: telling a report again with other content edits nothing; it is kept beside, and curation is as before."""
    files = {name: (home.experience / name).read_bytes() for name in stored(home)}
    rows, snapshot = query(home, "FROM reports ORDER BY report_id"), curate_all(home)
    corrected = [{**plain(report), "outcome": "SUCCESS"} for report in episode(1)]
    drop(home, "corrections", corrected)
    assert ingest_all(home).reasons == {"conflict": 20}
    maintenance(home).compact()
    assert query(home, "FROM reports ORDER BY report_id") == rows
    assert curate_all(home).digest == snapshot.digest
    assert {name: (home.experience / name).read_bytes() for name in files} == files
    assert query(home, "SELECT count(*) AS n FROM quarantine WHERE reason = 'conflict'") == [{"n": 20}]


def test_status_counts(home: Home) -> None:
    status = maintenance(home).status()
    assert (status.parts, status.rows, status.retired_files) == (3, 60, 0)
    assert status.small_parts == 3
    assert status.size_bytes == sum(path.stat().st_size for path in home.experience.glob("*/*.parquet"))
    assert status.oldest_landed_at is not None and status.oldest_landed_at.day == 5
    land(home, episode(9), name="more")
    maintenance(home).compact()
    assert maintenance(home).status().retired_files == 4
