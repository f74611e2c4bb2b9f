"""People ask while the pipeline writes: every answer is a committed state, and none is an error."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path

from support.builders.reports import episodes
from support.homes.lakes import maintenance
from support.homes.pipeline import drop, ingest_all

from simic.lake.lake import open_lake
from simic.lake.log import fold
from simic.ledgers.ledger import Ledger
from simic.runtime.home import Home

READERS = 2
READER = """
import json, sys
from pathlib import Path
from simic.catalogue.query import query
from simic.runtime.home import Home

home, out, stop = Home(Path(sys.argv[1])), Path(sys.argv[2]), Path(sys.argv[3])
sql = "SELECT count(*) AS n, count(DISTINCT report_id) AS d, coalesce(sum(step), 0)::BIGINT AS s FROM reports"
with out.open("a") as file:
    while not stop.exists():
        file.write(json.dumps(query(home, sql)[0]) + "\\n")
        file.flush()
"""


def test_readers_see_committed_states_only(tmp_path: Path) -> None:
    home, stop = Home(tmp_path / "home"), tmp_path / "stop"
    home.create()
    outs = [tmp_path / f"reader{number}.jsonl" for number in range(READERS)]
    readers = [
        subprocess.Popen([sys.executable, "-c", READER, str(home.root), str(out), str(stop)], stderr=subprocess.PIPE)
        for out in outs
    ]

    def everybody_asks(times: int) -> None:
        """Returns when each reader has begun and ended that many queries since."""
        wanted = [answers(out) + times + 1 for out in outs]
        while any(answers(out) < number for out, number in zip(outs, wanted, strict=True)):
            assert all(reader.poll() is None for reader in readers), [reader.communicate() for reader in readers]
            time.sleep(0.02)

    try:
        everybody_asks(1)
        for turn in range(4):
            drop(home, f"d{turn}", episodes(range(3 * turn, 3 * turn + 3)))
            ingest_all(home, batch_reports=25)
            maintenance(home).compact()
            everybody_asks(1)
            parts = open_lake(home).parts
            maintenance(home).retain(max_bytes=sum(part.size_bytes for part in parts[turn % 2 :]))
            everybody_asks(1)  # nobody reads the files of before any more
            maintenance(home).vacuum(grace_minutes=0)
        everybody_asks(1)
    finally:
        stop.touch()
        ends = [reader.communicate(timeout=60)[1].decode() for reader in readers]
    assert [reader.returncode for reader in readers] == [0] * READERS, ends

    lines = Ledger(home.ledger / "ingest.jsonl").read()
    states = [sum(part.rows for part in fold(lines[:end]).parts) for end in range(len(lines) + 1)]
    assert len(set(states)) > 4 and any(later < earlier for earlier, later in pairwise(states))
    for out in outs:
        place = 0
        for answer in map(json.loads, out.read_text().splitlines()):
            assert answer["n"] == answer["d"]
            assert answer["n"] in states[place:], f"{answer} is no state from line {place} on: {states}"
            place += states[place:].index(answer["n"])


def answers(out: Path) -> int:
    return out.read_bytes().count(b"\n") if out.exists() else 0
