"""kill -9 of a producer or of a curation: a delivery or a snapshot is there whole, or it is not there."""

from __future__ import annotations

import random
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.builders.reports import episode, episodes, line
from support.checks.lake_contents import report_ids, surroundings
from support.faults.forked_processes import Victims, victims
from support.homes.pipeline import TOPIC, drop, ingest_all, land

from simic.bus.spool.bus import SpoolBus
from simic.bus.spool.lines import read_lines
from simic.catalogue.query import query
from simic.runtime.home import Home
from simic.snapshots.manifest import read_manifest

PUTS, CURATIONS = 20, 10
LONG = 1024 * 1024


@pytest.fixture(scope="module")
def server() -> Iterator[Victims]:
    with victims() as server:
        yield server


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path / "home")


@pytest.fixture(scope="module")
def digest(server: Victims, tmp_path_factory: pytest.TempPathFactory) -> str:
    """Of the snapshot that an undisturbed curation makes of one episode."""
    home = Home(tmp_path_factory.mktemp("undisturbed"))
    land(home, episode(1))
    return str(server.run("curate", home.root).result["digest"])


@pytest.fixture
def elsewhere(tmp_path: Path) -> Iterator[Path]:
    """A folder on another file system than the home, where there is one."""
    memory = Path("/dev/shm")  # noqa: S108 - a file system that Linux has
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else tmp_path) as folder:
        yield Path(folder)


def check_snapshots(home: Home, digest: str) -> bool:
    """Whether there is one; if so, it is the right one and whole."""
    names = surroundings(home).snapshots
    assert names in ([], [digest[:16]])
    assert all(read_manifest(home.snapshots / name).digest == digest for name in names)
    assert query(home, "SELECT snapshot FROM snapshots") == [{"snapshot": digest} for _ in names]
    return names != []


def check_rerun(server: Victims, home: Home, digest: str) -> None:
    assert server.run("curate", home.root).result == {"digest": digest}
    assert check_snapshots(home, digest)
    assert "curate" not in surroundings(home).tmp
    assert not home.unfinished_snapshots.exists()


@pytest.mark.parametrize("is_near", [True, False])
@pytest.mark.parametrize("die", ["before", "after"])
def test_a_curation_killed_around_the_rename(
    server: Victims, home: Home, digest: str, die: str, is_near: bool, elsewhere: Path
) -> None:
    if not is_near:
        home.data.mkdir(parents=True)
        home.snapshots.symlink_to(elsewhere)
    land(home, episode(1))
    assert server.run("curate", home.root, die=die).killed
    assert check_snapshots(home, digest) == (die == "after")
    check_rerun(server, home, digest)


def test_a_curation_killed_at_random_moments(server: Victims, home: Home, digest: str, tmp_path: Path) -> None:
    land(home, episode(1))
    twin = Home(tmp_path / "twin")
    land(twin, episode(1))
    began = time.monotonic()
    server.run("curate", twin.root)
    limit_s = time.monotonic() - began
    rng = random.Random(2)  # noqa: S311
    for _ in range(CURATIONS):
        server.kill_after(rng.uniform(0, limit_s), "curate", home.root)
        check_snapshots(home, digest)
    check_rerun(server, home, digest)


def test_a_producer_killed_at_random_moments(server: Victims, home: Home, tmp_path: Path) -> None:
    """Each delivery is there with all its lines or not at all; put again, it is the same one."""
    reports = episodes(range(40))
    rows = list(map(line, reports))
    file = drop(Home(tmp_path / "letters"), "all", reports)
    began = time.monotonic()
    server.run("put", tmp_path / "twin", name="n", file=str(file))
    limit_s = time.monotonic() - began
    rng = random.Random(3)  # noqa: S311
    bus = SpoolBus(home.spool)
    for _ in range(PUTS):
        server.kill_after(rng.uniform(0, limit_s), "put", home.root, name="n", file=str(file))
        for path in (home.spool / TOPIC).glob("incoming/*"):
            assert [row.data for row in read_lines(path, LONG)] == rows, "a delivery by halves"
        assert bus.pending(TOPIC) in (0, 1)
    bus.put(TOPIC, "n", rows)
    receipt = ingest_all(home)
    assert (receipt.read, receipt.landed) == (len(reports), len(reports))
    assert report_ids(home) == [report.report_id for report in reports]
