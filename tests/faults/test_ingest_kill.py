"""kill -9 at every point of an ingest: no report lost, none landed twice, nothing left behind."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest
from support.homes import TOPIC, drop, ingest_all
from support.reports import BLUEPRINTS, episode, episodes, line

from simic.bus.spool import SpoolBus
from simic.lake.catalogue import query
from simic.lake.ledger import Ledger
from simic.lake.parts import committed_parts, verify_part
from simic.runtime.settings import Home

POINTS = ["part-written", "part-renamed", "committed"]
BATCH = 30

VICTIM = f"""
import os, signal, sys
from pathlib import Path
from simic.bus.spool import SpoolBus
from simic.contracts.config import IngestConfig
from simic.contracts.receipts import Provenance
from simic.ingestion.ingest import ingest
from simic.runtime.clock import utc_now
from simic.runtime.settings import Home

home, point, passes = Home(Path(sys.argv[1])), sys.argv[2], int(sys.argv[3])

def checkpoint(name):
    global passes
    passes -= name == point
    if name == point and passes == 0:
        os.kill(os.getpid(), signal.SIGKILL)

ingest(SpoolBus(home.spool), home, IngestConfig(batch_reports={BATCH}), frozenset({BLUEPRINTS!r}),
       provenance=Provenance("x", "c" * 64, 0), clock=utc_now, checkpoint=checkpoint)
"""


def kill_at(home: Home, point: str, passes: int) -> None:
    """Runs an ingest in a process of its own that dies when it passes ``point`` for the ``passes``-th time."""
    done = subprocess.run([sys.executable, "-c", VICTIM, str(home.root), point, str(passes)], check=False, timeout=60)
    assert done.returncode == -signal.SIGKILL


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
    parts = committed_parts(Ledger(home.ledger / "ingest.jsonl"))
    on_disk = {path.relative_to(home.experience).as_posix() for path in home.experience.glob("*/*.parquet")}
    assert on_disk == {part.part for part in parts}
    assert sum(verify_part(home.experience, part).is_file() * part.rows for part in parts) == len(expected)
    assert query(home, "SELECT source, line, reason FROM quarantine ORDER BY line") == [
        {"source": "b.jsonl", "line": 11, "reason": "malformed_json"},
        {"source": "b.jsonl", "line": 47, "reason": "duplicate"},
        {"source": "b.jsonl", "line": 48, "reason": "duplicate"},
    ]
    assert SpoolBus(home.spool).pending(TOPIC) == 0
    assert not list((home.tmp / "ingest").glob("*.parquet"))


@pytest.mark.parametrize("point", POINTS)
def test_one_kill_in_the_middle(tmp_path: Path, point: str) -> None:
    home = Home(tmp_path)
    expected = fill(home)
    kill_at(home, point, passes=2)
    receipt = ingest_all(home, batch_reports=BATCH)
    assert receipt.read == receipt.landed + receipt.duplicate + receipt.quarantined
    assert_whole(home, expected)


def test_a_kill_at_every_point_in_turn_and_a_torn_ledger_line(tmp_path: Path) -> None:
    home = Home(tmp_path)
    expected = fill(home)
    for point in ("checked", "quarantined", "part-renamed", "acknowledged", "committed"):
        kill_at(home, point, passes=1)
    tear_last_line(home.ledger / "ingest.jsonl")
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
    ledger = home.ledger / "ingest.jsonl"
    ledger.write_bytes(ledger.read_bytes()[:keep])
    (home.spool / TOPIC / "done" / "a.jsonl").rename(home.spool / TOPIC / "claimed" / "a.jsonl")
    assert query(home, "SELECT count(*) AS n FROM reports") == [{"n": 0}]
    receipt = ingest_all(home)
    assert (receipt.landed, receipt.duplicate) == (20, 0)
    assert query(home, "SELECT count(*) AS n, count(DISTINCT report_id) AS d FROM reports") == [{"n": 20, "d": 20}]


def test_a_part_that_no_line_lists_does_not_count_as_seen(tmp_path: Path) -> None:
    """Deduplication against files on disk would lose these rows: they are in no ledger line."""
    home = Home(tmp_path)
    drop(home, "a", episode(1))
    kill_at(home, "part-renamed", passes=1)
    assert len(list(home.experience.glob("*/*.parquet"))) == 1
    assert query(home, "FROM reports") == []
    assert ingest_all(home).landed == 20
