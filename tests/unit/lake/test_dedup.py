"""Landed reports are recognised, wherever they landed."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.builders.reports import episode, episodes
from support.homes.pipeline import land

from simic.contracts.errors import IntegrityError
from simic.lake.dedup import DedupIndex, open_dedup_index
from simic.lake.duck import connect
from simic.lake.parts import committed_parts
from simic.ledgers.ledger import Ledger
from simic.runtime.home import Home


def test_ids_of_committed_parts_are_found_with_their_place(tmp_path: Path) -> None:
    home = Home(tmp_path)
    land(home, episodes(range(3)), batch_reports=20)
    paths = [home.experience / part.part for part in committed_parts(Ledger(home.ledger / "ingest.jsonl"))]
    old, new = [report.report_id for report in episode(2)], [report.report_id for report in episode(9)]
    with open_dedup_index(paths[:2], tmp_path / "tmp") as seen:
        assert seen.find(old + new) == {}
        seen.add(paths[2:])
        found = seen.find(old + new)
    assert set(found) == set(old)
    assert found[old[5]].line == 46
    assert found[old[5]].source.startswith("reports-")


def test_a_file_whose_ids_cannot_be_read_is_named(tmp_path: Path) -> None:
    path = tmp_path / "ids.parquet"
    path.write_bytes(b"PAR1, once")
    with pytest.raises(IntegrityError, match=r"ids.parquet: expected the ids.*simic doctor"):
        open_dedup_index([path], tmp_path / "tmp").__enter__()


def test_nothing_landed_means_nothing_seen(tmp_path: Path) -> None:
    with open_dedup_index([], tmp_path) as seen:
        assert seen.find([episode(1)[0].report_id]) == {}


def test_memory_does_not_grow_with_what_has_landed(tmp_path: Path) -> None:
    """BUFFER-001: beyond its limit the index spills to disk and still finds every id."""
    part = tmp_path / "part.parquet"
    count = 3_000_000
    ids = [f"{number:032x}" for number in range(count)]
    row = {"content_digest": ["d"] * count, "source": ["f"] * count, "line": range(count)}
    pq.write_table(pa.table({"report_id": ids, **row}), part, row_group_size=131_072)
    with connect(tmp=tmp_path / "spill", memory_limit_mb=32, threads=1) as connection:
        seen = DedupIndex(connection, [part])
        assert sum(path.stat().st_size for path in (tmp_path / "spill").iterdir()) > 1_000_000
        found = seen.find([*ids[::3000], "f" * 32])
    assert {report_id: landed.line for report_id, landed in found.items()} == {ids[n]: n for n in range(0, count, 3000)}


def test_ids_of_one_hash_are_told_apart(tmp_path: Path) -> None:
    """The index holds hashes; what they point to is read before anything is called a repetition."""
    home = Home(tmp_path)
    land(home, episode(1))
    (part,) = committed_parts(Ledger(home.ledger / "ingest.jsonl"))
    with connect(tmp=tmp_path / "tmp", memory_limit_mb=256, threads=1) as connection:
        seen = DedupIndex(connection, [home.experience / part.part])
        connection.execute("UPDATE seen SET key = hash($id)", {"id": "f" * 32})
        assert seen.find(["f" * 32]) == {}
