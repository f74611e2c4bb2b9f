"""kill -9 at a hundred random moments: whatever was on the bus lands once, and every line can be accounted for."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.builders.reports import episode, line, plain
from support.checks.lake_contents import report_ids, surroundings
from support.faults.forked_processes import Victims, victims
from support.homes.pipeline import drop

from simic.catalogue.query import query
from simic.runtime.home import Home

KILLS = 25
HISTORIES = 4
BATCH = 5
"""So that a delivery of 12 lines takes several commits, and commits span deliveries."""

Place = tuple[str, int]


@pytest.fixture(scope="module")
def server() -> Iterator[Victims]:
    with victims() as server:
        yield server


class Bookkeeper:
    """Puts deliveries on the bus and knows what must become of each of their lines."""

    def __init__(self, home: Home) -> None:
        self.home = home
        self.good: set[str] = set()
        self.bad: Counter[str] = Counter()
        self.lines: set[Place] = set()

    def deliver(self) -> None:
        """Ten steps of an episode, one torn line, and the first step told again."""
        number = len(self.lines) // 12
        reports = episode(number)[:10]
        rows: list[Any] = [line(report) for report in reports]
        rows[4:4] = [b'{"torn']
        again = {**plain(reports[0]), "outcome": "SUCCESS"} if number % 2 else reports[0]
        drop(self.home, f"n{number:03d}", [*rows, again])
        self.good |= {report.report_id for report in reports}
        self.bad += Counter(malformed_json=1, conflict=number % 2, duplicate=1 - number % 2)
        self.lines |= {(f"n{number:03d}.jsonl", n) for n in range(1, 13)}

    def check_readers(self) -> None:
        """At no moment do readers see a report twice, a report that was never sent, or a damaged part."""
        seen = report_ids(self.home)
        assert len(seen) == len(set(seen))
        assert set(seen) <= self.good

    def check_whole(self) -> None:
        """All landed once, all refused once, nothing left over, every line in one of the two places."""
        self.check_readers()
        landed = query(self.home, "SELECT report_id, source, line FROM reports")
        refused = query(self.home, "SELECT reason, source, line FROM quarantine")
        assert Counter(row["report_id"] for row in landed) == Counter(self.good)
        assert Counter(row["reason"] for row in refused) == self.bad
        assert Counter((row["source"], row["line"]) for row in landed + refused) == Counter(self.lines)
        found = surroundings(self.home)
        assert found.on_disk == found.listed, "an orphan"
        assert (found.pending, found.unfinished) == (0, [])


def lifetime_s(server: Victims, books: Bookkeeper) -> float:
    """How long an ingest of one delivery takes here and now, undisturbed."""
    for _ in range(2):  # the first one pays for the server's start
        books.deliver()
        began = time.monotonic()
        assert server.run("ingest", books.home.root, batch_reports=BATCH).error is None
    return time.monotonic() - began


@pytest.mark.parametrize("history", range(HISTORIES))
def test_kills_at_random_moments_lose_nothing_and_double_nothing(tmp_path: Path, server: Victims, history: int) -> None:
    """Each history is one home that 25 ingests in a row were killed in; PD-5."""
    rng = random.Random(history)  # noqa: S311
    books = Bookkeeper(Home(tmp_path))
    limit_s = lifetime_s(server, books)
    killed = 0
    for _ in range(10 * KILLS):  # some finish before their moment comes
        books.deliver()
        delay_s = rng.uniform(0, limit_s)
        killed += server.kill_after(delay_s, "ingest", books.home.root, batch_reports=BATCH).killed
        books.check_readers()
        if killed == KILLS:
            break
    assert killed == KILLS
    assert server.run("ingest", books.home.root, batch_reports=BATCH).error is None
    books.check_whole()
