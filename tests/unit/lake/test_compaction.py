"""Merging small parts changes no row and no order; what is planned is bounded."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.builders.reports import episode, episodes
from support.homes.lakes import maintenance, report_ids, stored
from support.homes.pipeline import NOW, FixedClock, curate_all, drop, ingest_all, land

from simic.contracts.errors import ContractError, IntegrityError
from simic.lake import compaction
from simic.lake.compaction import MergeLimits, plan_merges
from simic.lake.lake import open_lake
from simic.lake.log import Part
from simic.runtime.home import Home


def rows_of(home: Home) -> pa.Table:
    lake = open_lake(home)
    return pa.concat_tables(pq.read_table(home.experience / part.part, partitioning=None) for part in lake.parts)


def test_merging_changes_no_row_and_no_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compaction, "_GROUP_ROWS", 32)
    monkeypatch.setattr(compaction, "_BATCH_ROWS", 10)
    home = Home(tmp_path)
    land(home, episodes(range(4)), batch_reports=15)
    before, snapshot, ids = rows_of(home), curate_all(home), report_ids(home)
    files = stored(home)
    done = maintenance(home).compact()
    assert (done.merges, done.parts_before, done.parts_after, done.rows) == (1, 6, 1, 80)
    assert rows_of(home).equals(before)
    assert report_ids(home) == ids
    part = open_lake(home).parts[0]
    assert pq.ParquetFile(home.experience / part.part).num_row_groups == 3
    assert part.sources == sorted(set(before["source"].to_pylist()))
    assert curate_all(home).digest == snapshot.digest
    assert stored(home) == files | {part.part}, "files that were merged wait for their readers"
    assert maintenance(home).compact().merges == 0


def test_merging_twice_the_same_gives_the_same_bytes(tmp_path: Path) -> None:
    digests = set()
    for name in ("a", "b"):
        land(Home(tmp_path / name), episodes(range(3)), batch_reports=20)
        maintenance(Home(tmp_path / name)).compact()
        digests.add(open_lake(Home(tmp_path / name)).parts[0].sha256)
    assert len(digests) == 1


def test_merged_reports_are_still_known(tmp_path: Path) -> None:
    home = Home(tmp_path)
    land(home, episodes(range(3)), batch_reports=20)
    maintenance(home).compact()
    maintenance(home).vacuum(grace_minutes=0)
    drop(home, "again", episode(1))
    assert (receipt := ingest_all(home)).duplicate == 20 and receipt.landed == 0


def test_damage_is_not_laundered(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    home = Home(tmp_path)
    land(home, episodes(range(3)), batch_reports=20)
    path = home.experience / open_lake(home).parts[1].part
    content = bytearray(path.read_bytes())
    content[100] ^= 1
    path.write_bytes(content)
    with pytest.raises(IntegrityError, match=path.name):
        maintenance(home).compact()
    assert len(open_lake(home).parts) == 3
    maintenance(home, compact_parts=2).run_due()
    assert path.name in caplog.text, "said, and left to the ingest behind it"


def test_an_ingest_merges_once_when_enough_small_parts_stand_in_a_row(tmp_path: Path) -> None:
    home = Home(tmp_path)
    land(home, episodes(range(3)), batch_reports=20)
    maintenance(home, compact_parts=4).run_due()
    assert len(open_lake(home).parts) == 3
    maintenance(home, compact_parts=3).run_due()
    assert len(open_lake(home).parts) == 1
    maintenance(home, compact_parts=0, small_mb=1).run_due()
    assert len(open_lake(home).parts) == 1


def test_nothing_landed_means_nothing_to_do(tmp_path: Path) -> None:
    home = Home(tmp_path)
    maintenance(home).run_due()
    assert maintenance(home).compact().merges == 0
    assert not (home.ledger / "ingest.jsonl").exists()
    with pytest.raises(ContractError, match="the lake holds no reports"):
        curate_all(home)


def land_on(home: Home, *days: str, episodes_each: int = 1) -> None:
    """Land episodes of twenty reports on each day (month and day), a part each."""
    for day in days:
        month, day_of_month = map(int, day.split("-"))
        first = 100 * month + 2 * day_of_month
        drop(home, f"d{day}", episodes(range(first, first + episodes_each)))
        ingest_all(home, clock=FixedClock(NOW.replace(month=month, day=day_of_month)), batch_reports=20)


def days_of(home: Home) -> list[tuple[str, int]]:
    """Day of the folder and number of rows of each part, in order."""
    return [(part.part[5:10], part.rows) for part in open_lake(home).parts]


def test_days_of_a_month_are_merged_and_months_are_not(tmp_path: Path) -> None:
    home = Home(tmp_path)
    land_on(home, "01-06", "01-07", "01-31", "02-01", "02-02")
    before, snapshot = rows_of(home), curate_all(home)
    assert maintenance(home).status().small_parts == 5
    assert maintenance(home).compact().merges == 2
    assert days_of(home) == [("01-06", 60), ("02-01", 40)]
    assert [part.landed_at.day for part in open_lake(home).parts] == [31, 2], "retention goes by the newest row"
    assert rows_of(home).equals(before)
    assert curate_all(home).digest == snapshot.digest


def test_days_are_not_merged_where_parts_are_dropped_by_age(tmp_path: Path) -> None:
    home = Home(tmp_path)
    land_on(home, "01-06", "01-07", episodes_each=2)
    assert maintenance(home, max_age_days=90.0).compact().merges == 2
    assert days_of(home) == [("01-06", 40), ("01-07", 40)]


def test_a_merge_takes_little_of_a_lake_that_is_limited_in_size(tmp_path: Path) -> None:
    """The oldest part is dropped as a whole, so one that held most rows would take them along for a byte too many."""
    home = Home(tmp_path)
    land_on(home, "01-06", "01-07", "01-08", "01-09")
    size_bytes = maintenance(home).status().size_bytes
    assert maintenance(home, max_bytes=size_bytes).compact().merges == 0
    assert maintenance(home, max_bytes=10 * size_bytes).compact().merges == 1
    assert days_of(home) == [("01-06", 60), ("01-09", 20)]


def test_an_ingest_merges_the_nights_of_a_month_that_is_over(tmp_path: Path) -> None:
    home = Home(tmp_path)
    land_on(home, "01-06", "01-07")
    maintenance(home).run_due()
    assert len(days_of(home)) == 2, "more nights of this month may come"
    land_on(home, "02-01")
    maintenance(home, max_age_days=36_500.0).run_due()
    assert len(days_of(home)) == 3
    maintenance(home).run_due()
    assert days_of(home) == [("01-06", 40), ("02-01", 20)]


@given(st.lists(st.tuples(st.integers(1, 40), st.integers(0, 1), st.integers(0, 1)), max_size=30))
def test_a_plan_takes_small_neighbours_only_and_stays_near_its_target(shapes: list[tuple[int, int, int]]) -> None:
    parts = [
        Part(
            part=f"day=2026-0{1 + day}-01/part-{number:x}-{number:016x}.parquet", rows=1, size_bytes=size,
            sha256=f"{number:064x}", sources=[], schema_digest=str(schema) * 64, landed_at=NOW, code_version="x",
        )
        for number, (size, day, schema) in enumerate(shapes)
    ]  # fmt: skip
    runs = plan_merges(parts, MergeLimits(small_bytes=20, target_bytes=50))
    places = [[parts.index(part) for part in run] for run in runs]
    for run, place in zip(runs, places, strict=True):
        assert place == list(range(place[0], place[0] + len(run))) and len(run) >= 2
        assert all(part.size_bytes < 20 for part in run)
        assert len({(part.part[:14], part.schema_digest) for part in run}) == 1
        assert sum(part.size_bytes for part in run[:-1]) < 50
    flat = [number for place in places for number in place]
    assert flat == sorted(set(flat))
