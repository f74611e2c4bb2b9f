"""kill -9 at every step of a merge, a drop and a sweep: readers see before or after, and the next run tidies up."""

from __future__ import annotations

import signal
import subprocess
import sys
from datetime import timedelta
from pathlib import Path

import pytest
from support.builders.reports import episodes
from support.homes.lakes import maintenance, report_ids, stored
from support.homes.pipeline import NOW, FixedClock, drop, ingest_all, land

from simic.lake.lake import open_lake
from simic.runtime.home import Home

VICTIM = """
import os, signal, sys
from datetime import datetime, timedelta
from pathlib import Path
from simic.lake.compaction import merge
from simic.lake.lake import open_lake
from simic.lake.retention import drop, vacuum
from simic.runtime.home import Home

home, verb, point, passes = Home(Path(sys.argv[1])), sys.argv[2], sys.argv[3], int(sys.argv[4])
now = datetime.fromisoformat(sys.argv[5])

def checkpoint(name):
    global passes
    passes -= name == point
    if name == point and passes == 0:
        os.kill(os.getpid(), signal.SIGKILL)

lake = open_lake(home)
if verb == "merge":
    merge(lake, lake.parts[:3], at=now, code_version="x", checkpoint=checkpoint)
if verb == "drop":
    drop(lake, lake.parts[:2], "age", at=now, code_version="x", checkpoint=checkpoint)
if verb == "vacuum":
    vacuum(lake, now=now, grace=timedelta(0), checkpoint=checkpoint)
"""


def kill_at(home: Home, verb: str, point: str, passes: int = 1) -> None:
    now = (NOW + timedelta(minutes=5)).isoformat()
    command = [sys.executable, "-c", VICTIM, str(home.root), verb, point, str(passes), now]
    assert subprocess.run(command, check=False, timeout=60).returncode == -signal.SIGKILL


@pytest.fixture
def home(tmp_path: Path) -> Home:
    home = Home(tmp_path)
    land(home, episodes(range(4)), batch_reports=20)
    return home


IDS = [report.report_id for report in episodes(range(4))]


@pytest.mark.parametrize(("point", "parts"), [("part-written", 4), ("part-renamed", 4), ("committed", 2)])
def test_a_merge_that_is_killed_is_before_or_after(home: Home, point: str, parts: int) -> None:
    kill_at(home, "merge", point)
    assert (len(open_lake(home).parts), report_ids(home)) == (parts, IDS)
    drop(home, "again", episodes(range(4)))
    assert ingest_all(home).duplicate == 80
    state = open_lake(home).state
    assert stored(home) == {part.part for part in state.parts} | state.retired.keys(), "orphans are gone"
    maintenance(home).compact()
    maintenance(home, FixedClock(NOW + timedelta(minutes=10))).vacuum(grace_minutes=0)
    assert report_ids(home) == IDS
    assert stored(home) == {part.part for part in open_lake(home).parts}
    assert not list((home.tmp / "compact").glob("*"))


@pytest.mark.parametrize(("point", "left"), [("remembered", 4), ("committed", 2)])
def test_a_drop_that_is_killed_is_before_or_after(home: Home, point: str, left: int) -> None:
    kill_at(home, "drop", point)
    assert report_ids(home) == IDS[20 * (4 - left) :]
    drop(home, "again", episodes(range(4)))
    receipt = ingest_all(home)
    assert (receipt.landed, receipt.duplicate) == (0, 80)
    assert report_ids(home) == IDS[20 * (4 - left) :]
    maintenance(home).vacuum(grace_minutes=0)
    assert len(list(home.ids.glob("*"))) == (left == 2), "ids that no line names are gone, the others stay"


def test_a_torn_line_of_a_merge_never_was(home: Home) -> None:
    kill_at(home, "merge", "committed")
    ledger = home.ledger / "ingest.jsonl"
    content = ledger.read_bytes()
    start = content[:-1].rfind(b"\n") + 1
    ledger.write_bytes(content[: start + 200])
    assert (len(open_lake(home).parts), report_ids(home)) == (4, IDS)
    assert maintenance(home).compact().merges == 1
    assert report_ids(home) == IDS


@pytest.mark.parametrize("passes", [1, 2])
def test_a_sweep_that_is_killed_is_finished_later(home: Home, passes: int) -> None:
    maintenance(home).compact()
    kill_at(home, "vacuum", "deleted", passes)
    assert report_ids(home) == IDS
    assert maintenance(home).vacuum(grace_minutes=0).files == 4 - passes
    assert stored(home) == {part.part for part in open_lake(home).parts}
