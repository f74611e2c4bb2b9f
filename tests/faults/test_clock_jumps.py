"""A clock that jumps: what lands, once and in which order, does not depend on it; only the days on the folders do."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime, timedelta
from itertools import chain, repeat
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from support.builders.reports import episode, episodes, line, plain
from support.checks.lake_contents import ledger_of, parts_of, report_ids, surroundings
from support.homes.pipeline import NOW, TOPIC, curate_all, drop, ingest_all

from simic.bus.spool.bus import SpoolBus
from simic.catalogue.query import query
from simic.contracts.errors import TransientError
from simic.contracts.field_report import FieldReport
from simic.runtime.home import Home

DAY, YEAR = timedelta(days=1), timedelta(days=365)
LATE = datetime(2026, 1, 6, 23, 59, 59, 900_000, tzinfo=UTC)
JUMPS = {
    "back by a day": [NOW, NOW, NOW - DAY, NOW - DAY - DAY],
    "forth by a year": [NOW, NOW, NOW + YEAR, NOW + YEAR],
    "forth and back": [NOW, NOW + YEAR, NOW - YEAR, NOW],
    "over midnight": [LATE, LATE, LATE + timedelta(seconds=0.2), LATE + timedelta(seconds=0.4)],
    "standing still": [NOW],
}


class Clock:
    """Tells these moments, one a look, and then goes on telling the last."""

    def __init__(self, moments: Iterable[datetime]) -> None:
        told = list(moments)
        self._moments: Iterator[datetime] = chain(told, repeat(told[-1]))

    def __call__(self) -> datetime:
        return next(self._moments)


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path / "home")


def check_days(home: Home) -> None:
    """Folder, column and ledger line of a part say the same, in UTC."""
    for part in parts_of(home):
        assert part.part.startswith(f"{part.landed_at.astimezone(UTC):%Y-%m-%d}/")
        table = pq.read_table(home.experience / part.part, columns=["landed_at", "day"], partitioning=None)
        assert set(table["landed_at"].to_pylist()) == {part.landed_at}
        assert set(table["day"].to_pylist()) == {part.landed_at.astimezone(UTC).date()}


@pytest.mark.parametrize("moments", JUMPS.values(), ids=JUMPS)
def test_whatever_the_clock_does_all_of_it_lands_once(home: Home, tmp_path: Path, moments: list[datetime]) -> None:
    reports = episodes(range(3))
    drop(home, "a", [*reports, b"{", reports[5]])
    receipt = ingest_all(home, clock=Clock(moments), batch_reports=20)
    assert (receipt.landed, receipt.duplicate, receipt.quarantined) == (60, 1, 1)
    assert report_ids(home) == [report.report_id for report in reports], "in the order of the ledger, not of the clock"
    check_days(home)
    steady = Home(tmp_path / "steady")
    drop(steady, "a", reports)
    ingest_all(steady)
    assert curate_all(home).digest == curate_all(steady).digest


def test_a_batch_belongs_to_the_day_it_began_on(home: Home) -> None:
    """Its first line was read before midnight and its last after; a part must not lie in two folders."""
    drop(home, "a", episode(1))
    ingest_all(home, clock=Clock([LATE, LATE, LATE + DAY]))
    assert [part.part[:10] for part in parts_of(home)] == ["2026-01-06"]
    check_days(home)


@pytest.mark.parametrize("zone", ["America/New_York", "Pacific/Kiritimati"])
def test_days_are_utc_wherever_the_machine_stands(home: Home, monkeypatch: pytest.MonkeyPatch, zone: str) -> None:
    """An hour before midnight UTC it is long tomorrow on the one island, and still afternoon on the other."""
    drop(home, "a", episode(1))
    monkeypatch.setenv("TZ", zone)
    time.tzset()
    try:
        ingest_all(home, clock=Clock([LATE]))
        assert query(home, "SELECT DISTINCT landed_at FROM reports") == [{"landed_at": LATE.isoformat()}]
    finally:
        monkeypatch.undo()
        time.tzset()
    assert [part.part[:10] for part in parts_of(home)] == ["2026-01-06"]


@pytest.mark.parametrize("jump", [-DAY, YEAR, -YEAR])
def test_the_report_that_landed_first_stays_whatever_the_clock_says_since(home: Home, jump: timedelta) -> None:
    """By the clock the second one may be the older; by the ledger it is not."""
    report = episode(1)[3]
    drop(home, "a", [report])
    ingest_all(home, clock=Clock([NOW]))
    other = FieldReport.model_validate({**plain(report), "outcome": "SUCCESS"})
    drop(home, "b", [other, report])
    receipt = ingest_all(home, clock=Clock([NOW + jump]))
    assert (receipt.landed, receipt.duplicate, receipt.reasons) == (0, 1, {"conflict": 1})
    assert query(home, "SELECT outcome, landed_at FROM reports") == [
        {"outcome": "NEUTRAL", "landed_at": NOW.isoformat()}
    ]


@pytest.mark.parametrize("jump", [-DAY, DAY, YEAR])
def test_a_batch_that_comes_again_on_another_day_leaves_nothing_on_the_first(home: Home, jump: timedelta) -> None:
    """As after a kill between rename and ledger line, with a night in between: the name is the same, the folder not."""
    drop(home, "a", episode(1))
    ingest_all(home, clock=Clock([NOW]))
    (first,) = surroundings(home).listed
    ledger_of(home).write_bytes(b"")
    (home.spool / TOPIC / "done" / "a.jsonl").rename(home.spool / TOPIC / "claimed" / "a.jsonl")
    ingest_all(home, clock=Clock([NOW + jump]))
    found = surroundings(home)
    assert found.listed == found.on_disk
    assert found.listed == [first.replace(f"{NOW:%Y-%m-%d}", f"{NOW + jump:%Y-%m-%d}")]
    assert sorted(report_ids(home)) == sorted(report.report_id for report in episode(1))


def test_a_refusal_keeps_the_moment_of_its_first_telling(home: Home) -> None:
    drop(home, "a", [*episode(1), b"{"])
    ingest_all(home, clock=Clock([NOW]))
    (home.spool / TOPIC / "done" / "a.jsonl").rename(home.spool / TOPIC / "claimed" / "a.jsonl")
    ingest_all(home, clock=Clock([NOW + YEAR]), batch_reports=7)
    assert query(home, "SELECT seen_at FROM quarantine") == [{"seen_at": NOW.isoformat()}]


def test_a_clock_a_year_ahead_expires_everything_in_that_snapshot_and_nothing_in_the_lake(home: Home) -> None:
    """Retention leaves rows out of a snapshot; once the clock is right again the next snapshot has them."""
    drop(home, "a", episodes(range(2)))
    ingest_all(home, clock=Clock([NOW]))
    right = curate_all(home, ttl_days=30, clock=Clock([NOW]))
    ahead = curate_all(home, ttl_days=30, clock=Clock([NOW + YEAR]))
    assert (ahead.rows_out, ahead.rejected) == (0, {"expired": 40})
    assert curate_all(home, ttl_days=30, clock=Clock([NOW])) == right
    assert len(report_ids(home)) == 40


def test_a_clock_behind_expires_nothing(home: Home) -> None:
    drop(home, "a", episodes(range(2)))
    ingest_all(home, clock=Clock([NOW]))
    assert curate_all(home, ttl_days=30, clock=Clock([NOW - YEAR])).rows_out == 40


def test_a_producer_whose_unfinished_file_looks_a_day_old_is_told(home: Home) -> None:
    """The clock jumped ahead while it wrote, a consumer tidied up: no delivery, but no silence either."""
    bus = SpoolBus(home.spool)
    reports = episode(1)

    def lines() -> Iterator[bytes]:
        for number, report in enumerate(reports):
            if number == 10:
                (unfinished,) = (home.spool / TOPIC / "tmp").iterdir()
                long_ago = time.time() - YEAR.total_seconds()
                os.utime(unfinished, (long_ago, long_ago))
                assert list(bus.claim(TOPIC)) == []
            yield line(report)

    with pytest.raises(TransientError, match="cannot put"):
        bus.put(TOPIC, "a", lines())
    assert bus.pending(TOPIC) == 0
    bus.put(TOPIC, "a", map(line, reports))
    assert ingest_all(home).landed == 20
