"""kill -9 at every point of an ingest: no report lost, none landed twice, nothing left behind."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from support.builders.reports import episode, episodes, line
from support.checks.lake_contents import ledger_of, report_ids, surroundings
from support.faults.forked_processes import KILL, Event, Victims, victims
from support.homes.pipeline import TOPIC, drop, ingest_all

from simic.bus.spool.bus import SpoolBus
from simic.catalogue.query import query
from simic.runtime.home import Home

POINTS = ["checked", "quarantined", "part-written", "part-renamed", "committed", "acknowledged"]
BATCH = 30


@pytest.fixture(scope="module")
def server() -> Iterator[Victims]:
    with victims() as server:
        yield server


def kill_at(server: Victims, home: Home, point: str, passes: int) -> None:
    """Runs an ingest in a process of its own that dies when it passes ``point`` for the ``passes``-th time."""
    event = Event(point=point, passes=passes, way=KILL, room_bytes=0)
    assert server.run("ingest", home.root, batch_reports=BATCH, event=event).killed


def fill(home: Home) -> list[str]:
    """Three deliveries with good, bad and repeated lines; returns the ids that must land."""
    good = episodes(range(6))
    SpoolBus(home.spool).put(TOPIC, "a", map(line, good[:50]))
    drop(home, "b", [*good[50:60], b'{"torn', *good[60:95], good[3], good[70]])
    SpoolBus(home.spool).put(TOPIC, "c", map(line, good[95:]))
    return sorted(report.report_id for report in good)


def assert_whole(home: Home, expected: list[str]) -> None:
    rows = query(home, "SELECT report_id FROM reports ORDER BY report_id")
    assert [row["report_id"] for row in rows] == expected
    assert sorted(report_ids(home)) == expected
    found = surroundings(home)
    assert found.on_disk == found.listed
    assert (found.pending, found.unfinished) == (0, [])
    assert query(home, "SELECT source, line, reason FROM quarantine ORDER BY line") == [
        {"source": "b.jsonl", "line": 11, "reason": "malformed_json"},
        {"source": "b.jsonl", "line": 47, "reason": "duplicate"},
        {"source": "b.jsonl", "line": 48, "reason": "duplicate"},
    ]


@pytest.mark.parametrize("point", POINTS)
def test_one_kill_in_the_middle(tmp_path: Path, server: Victims, point: str) -> None:
    home = Home(tmp_path)
    expected = fill(home)
    kill_at(server, home, point, passes=2)
    receipt = ingest_all(home, batch_reports=BATCH)
    assert receipt.read == receipt.landed + receipt.duplicate + receipt.quarantined
    assert_whole(home, expected)


def test_a_kill_at_every_point_in_turn_and_a_torn_ledger_line(tmp_path: Path, server: Victims) -> None:
    home = Home(tmp_path)
    expected = fill(home)
    for point in ("checked", "quarantined", "part-renamed", "acknowledged", "committed"):
        kill_at(server, home, point, passes=1)
    tear_last_line(ledger_of(home))
    ingest_all(home, batch_reports=BATCH)
    assert_whole(home, expected)


def tear_last_line(ledger: Path) -> None:
    """What a kill during the append leaves: half a line, and the part it would have listed."""
    content = ledger.read_bytes()
    start = content[:-1].rfind(b"\n") + 1
    ledger.write_bytes(content[: start + (len(content) - start) // 2])


@pytest.mark.parametrize("keep", [0, 1, -1])
def test_a_torn_ledger_line_never_was(tmp_path: Path, keep: int) -> None:
    """Torn after no byte, one byte, and all but the line end."""
    home = Home(tmp_path)
    drop(home, "a", episode(1))
    ingest_all(home)
    ledger = ledger_of(home)
    ledger.write_bytes(ledger.read_bytes()[:keep])
    (home.spool / TOPIC / "done" / "a.jsonl").rename(home.spool / TOPIC / "claimed" / "a.jsonl")
    assert query(home, "SELECT count(*) AS n FROM reports") == [{"n": 0}]
    receipt = ingest_all(home)
    assert (receipt.landed, receipt.duplicate) == (20, 0)
    assert query(home, "SELECT count(*) AS n, count(DISTINCT report_id) AS d FROM reports") == [{"n": 20, "d": 20}]


def test_a_part_that_no_line_lists_does_not_count_as_seen(tmp_path: Path, server: Victims) -> None:
    """Deduplication against files on disk would lose these rows: they are in no ledger line."""
    home = Home(tmp_path)
    drop(home, "a", episode(1))
    kill_at(server, home, "part-renamed", passes=1)
    assert len(list(home.experience.glob("*/*.parquet"))) == 1
    assert query(home, "FROM reports") == []
    assert ingest_all(home).landed == 20
