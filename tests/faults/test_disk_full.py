"""A full disk: a typed error, nothing acknowledged that did not land, and once there is space all of it lands."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from support.builders.reports import episode, line
from support.faults.forked_processes import Ending, Victims, victims
from support.faults.full_disks import LIMIT, TMPFS, ways

BATCH = 9
ROOMS = [kibibytes * 1024 for kibibytes in (0, 4, 8, 16, 24, 32, 48, 96, 192, 1024)]
"""Bytes; the first leave no room for anything, the last enough for everything."""

FIRST_FAILURE = {
    "checked": "cannot quarantine",
    "quarantined": " part-",
    "part-written": "ingest.jsonl",
    "part-renamed": "ingest.jsonl",
}
"""Checkpoint at which the disk fills up, and what then cannot be done."""


@dataclass(frozen=True)
class Desk:
    """Victims on one small disk, and the homes on it."""

    way: str
    server: Victims
    place: Path
    letters: Path

    def home(self, name: str) -> Path:
        return self.place / name

    def put(self, home: Path, key: int, **options: Any) -> Ending:
        """One delivery of 20 steps whose second line is torn and whose last was told before."""
        reports = list(map(line, episode(key)))
        file = self.letters / f"{key}.jsonl"
        file.write_bytes(b"\n".join([reports[0], b'{"torn', *reports[1:], reports[0]]))
        task = {"task": "put", "home": home, "name": f"d{key}", "file": str(file)}
        return self.server.run(**({**task, "task": "with_room", "then": "put", **options} if options else task))

    def ingest(self, home: Path, **options: Any) -> Ending:
        return self.server.run("ingest", home, batch_reports=BATCH, **options)

    def in_room(self, home: Path, room_bytes: int, then: str, **arguments: Any) -> Ending:
        """The task on a disk that has only so much room; afterwards somebody frees it."""
        ending = self.server.run("with_room", home, way=self.way, room_bytes=room_bytes, then=then, **arguments)
        self.server.run("free", home)
        return ending

    def check_whole(self, home: Path, deliveries: int) -> None:
        """Every line is in one of the two places, once; no orphan, no rest."""
        rows = self.server.run("sql", home, query="SELECT source, line, '' AS reason FROM reports").result["rows"]
        rows += self.server.run("sql", home, query="SELECT source, line, reason FROM quarantine").result["rows"]
        assert max(Counter((row["source"], row["line"]) for row in rows).values()) == 1
        reasons = Counter(row["reason"] for row in rows)
        assert reasons == {"": 20 * deliveries, "malformed_json": deliveries, "duplicate": deliveries}
        look = self.server.run("look", home).result
        assert look["on_disk"] == look["listed"]
        assert (look["pending"], look["unfinished"]) == (0, [])


@pytest.fixture(scope="module", params=ways())
def desk(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Desk]:
    place = tmp_path_factory.mktemp("disk")
    with victims(disk=place if request.param == TMPFS else None) as server:
        yield Desk(request.param, server, place, tmp_path_factory.mktemp("letters"))


@pytest.mark.parametrize("point", FIRST_FAILURE)
def test_a_disk_that_fills_up_during_an_ingest(desk: Desk, point: str) -> None:
    home = desk.home(f"fills-at-{point}")
    desk.put(home, 1)
    assert desk.ingest(home).result["landed"] == 20
    desk.put(home, 2)
    event = {"point": point, "passes": 1, "way": desk.way, "room_bytes": 0}
    failed = desk.ingest(home, event=event)
    desk.server.run("free", home)
    assert failed.error == "TransientError", failed
    if desk.way == LIMIT or FIRST_FAILURE[point] != "ingest.jsonl":  # its last block may have room for a line or two
        assert FIRST_FAILURE[point] in failed.message
    assert desk.server.run("look", home).result["pending"] == 1, "acknowledged though it did not land"
    again = desk.ingest(home)
    assert again.error is None, again.message
    desk.check_whole(home, deliveries=2)


def test_however_little_room_an_ingest_has(desk: Desk) -> None:
    home = desk.home("ingest")
    errors = []
    for number, room in enumerate(ROOMS):
        desk.put(home, number)
        errors.append(desk.in_room(home, room, "ingest", batch_reports=BATCH))
        assert errors[-1].error in (None, "TransientError"), errors[-1]
        listed = desk.server.run("sql", home, query="SELECT count(*) AS n, count(DISTINCT report_id) AS d FROM reports")
        assert [row["n"] - row["d"] for row in listed.result["rows"]] == [0]
    assert errors[0].error is not None
    assert errors[-1].error is None
    desk.check_whole(home, deliveries=len(ROOMS))


def test_however_little_room_a_producer_has(desk: Desk) -> None:
    """What could not be put is told to the producer, who puts it again; then it is one delivery."""
    home = desk.home("put")
    for room in (0, 1, 4096, 16 * 1024):
        error = desk.put(home, 1, way=desk.way, room_bytes=room).error
        desk.server.run("free", home)
        assert error == (None if room == 16 * 1024 else "TransientError")
    desk.ingest(home)
    desk.check_whole(home, deliveries=1)


@pytest.mark.parametrize("room", [0, 4096, 32 * 1024, 128 * 1024])
def test_a_query_without_room_says_so_and_the_next_one_is_right(desk: Desk, room: int) -> None:
    """The catalogue is rebuilt for every query; half of one must never be asked."""
    home = desk.home("sql")
    desk.put(home, 1)
    desk.ingest(home)
    count = {"query": "SELECT count(*) AS n FROM reports"}
    assert desk.in_room(home, room, "sql", **count).error == "TransientError"
    assert desk.server.run("sql", home, **count).result["rows"] == [{"n": 20}]
    assert [name for name in desk.server.run("look", home).result["tmp"] if name.startswith("catalogue-")] == []


def test_however_little_room_a_snapshot_has(desk: Desk) -> None:
    """None or a whole one, of the digest that it would have had with room enough."""
    home, other = desk.home("curate"), desk.home("roomy")
    for place in (home, other):
        desk.put(place, 1)
        desk.ingest(place)
    digest = desk.server.run("curate", other).result["digest"]
    endings = []
    for room in range(0, 128 * 1024, 2048):
        endings.append(desk.in_room(home, room, "curate"))
        look = desk.server.run("look", home).result
        if endings[-1].error is None:
            assert look["snapshots"] == [digest[:16]]
            assert endings[-1].result["digest"] == digest
            break
        assert endings[-1].error == "TransientError", endings[-1]
        assert look["snapshots"] == []
        assert "curate" not in look["tmp"], "the workshop takes the room that is missing"
    assert len(endings) > 3
    assert endings[-1].error is None
    assert any("steps.parquet" in ending.message for ending in endings)


def test_a_ledger_line_that_the_disk_cut_short_never_was(tmp_path: Path) -> None:
    """A real short write: the first bytes of the line are on disk, the rest was refused."""
    with victims() as server:
        desk = Desk(LIMIT, server, tmp_path, tmp_path)
        home = desk.home("home")
        desk.put(home, 1)
        desk.ingest(home)
        desk.put(home, 2)
        ledger = home / "data" / "ledger" / "ingest.jsonl"
        size = ledger.stat().st_size
        event = {"point": "part-renamed", "passes": 1, "way": LIMIT, "room_bytes": size + 100}
        assert desk.ingest(home, event=event).error == "TransientError"
        assert ledger.stat().st_size == size + 100
        assert not ledger.read_bytes().endswith(b"\n")
        desk.ingest(home)
        desk.check_whole(home, deliveries=2)
