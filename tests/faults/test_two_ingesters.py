"""Two ingests of one home at once: one works, the other is told who does; and a lock dies with its holder."""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.builders.reports import episode, episodes
from support.checks.lake_contents import report_ids, surroundings
from support.faults.forked_processes import Victims, victims
from support.homes.pipeline import drop

from simic.runtime.home import Home

BATCH = 8
POINTS = ["checked", "quarantined", "part-written", "part-renamed", "committed", "acknowledged"]
CROWD = 5
KEYS = range(6)


@pytest.fixture(scope="module")
def server() -> Iterator[Victims]:
    with victims() as server:
        yield server


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path / "home")


def landed_once(home: Home, keys: range) -> bool:
    found = surroundings(home)
    whole = found.on_disk == found.listed and found.pending == 0 and not found.unfinished
    return whole and sorted(report_ids(home)) == sorted(report.report_id for report in episodes(keys))


@pytest.mark.parametrize("point", POINTS)
def test_the_second_is_told_who_works_and_disturbs_nothing(server: Victims, home: Home, point: str) -> None:
    """Wherever the first one is: its unfinished files and its unlisted part look like a dead process's."""
    drop(home, "a", [*episode(0), b"{"])
    first = server.start_and_hold(home.root, point, batch_reports=BATCH)
    second = server.run("ingest", home.root, batch_reports=BATCH)
    assert second.error == "BusyError"
    assert f"process {first}" in second.message
    server.release(home.root)
    assert server.wait(first).result["landed"] == 20
    assert landed_once(home, range(1))


@pytest.mark.parametrize("point", POINTS)
def test_the_lock_dies_with_its_holder(server: Victims, home: Home, point: str) -> None:
    drop(home, "a", episode(0))
    first = server.start_and_hold(home.root, point, batch_reports=BATCH)
    os.kill(first, signal.SIGKILL)
    assert server.wait(first).killed
    second = server.run("ingest", home.root, batch_reports=BATCH)
    assert second.error is None, second.message
    assert landed_once(home, range(1))


def test_a_crowd_lands_everything_once_between_them(server: Victims, home: Home) -> None:
    """Some are refused, some are killed, and new deliveries arrive all the time."""
    rng = random.Random(1)  # noqa: S311
    for key in KEYS:
        drop(home, f"f{key}", episode(key))
        crowd = [server.start("ingest", home.root, batch_reports=BATCH) for _ in range(CROWD)]
        os.kill(rng.choice(crowd), signal.SIGKILL)
        for ending in map(server.wait, crowd):
            assert ending.killed or ending.error in (None, "BusyError"), ending
    server.run("ingest", home.root, batch_reports=BATCH)
    assert landed_once(home, KEYS)
