"""A part is whole or absent, and counts only when listed."""

from __future__ import annotations

from pathlib import Path

import pyarrow.parquet as pq
import pytest
from support.homes import NOW, land
from support.reports import episodes

from simic.contracts.errors import IntegrityError
from simic.lake.ledger import Ledger
from simic.lake.operations import read_state
from simic.lake.parts import committed_parts, delete_orphans, file_digest, ledger_digest, verify_part
from simic.lake.store import LocalParts
from simic.runtime.settings import Home


@pytest.fixture
def home(tmp_path: Path) -> Home:
    home = Home(tmp_path)
    land(home, episodes(range(3)), batch_reports=25)
    return home


def test_ledger_lines_describe_their_parts(home: Home) -> None:
    parts = committed_parts(Ledger(home.ledger / "ingest.jsonl"))
    assert [part.rows for part in parts] == [25, 25, 10]
    for part in parts:
        path = verify_part(home.experience, part)
        assert path.parent.name == f"day={NOW:%Y-%m-%d}"
        assert pq.read_metadata(path).num_rows == part.rows
        assert (path.stat().st_size, file_digest(path)) == (part.size_bytes, part.sha256)
        assert len(part.sources) == 1


def test_changed_and_missing_parts_are_noticed(home: Home) -> None:
    part = committed_parts(Ledger(home.ledger / "ingest.jsonl"))[0]
    path = home.experience / part.part
    content = bytearray(path.read_bytes())
    content[100] ^= 1
    path.write_bytes(content)
    with pytest.raises(IntegrityError, match="expected SHA-256"):
        verify_part(home.experience, part)
    path.unlink()
    with pytest.raises(IntegrityError, match="not there"):
        verify_part(home.experience, part)


def test_only_unlisted_parts_are_orphans(home: Home) -> None:
    state = read_state(Ledger(home.ledger / "ingest.jsonl"))
    listed = {path: path.read_bytes() for path in home.experience.glob("*/*.parquet")}
    orphan = home.experience / "day=2026-01-01" / "part-abc-0123456789abcdef.parquet"
    orphan.parent.mkdir()
    orphan.write_bytes(b"x")
    assert delete_orphans(LocalParts(home.experience), state) == ["day=2026-01-01/part-abc-0123456789abcdef.parquet"]
    assert {path: path.read_bytes() for path in home.experience.glob("*/*.parquet")} == listed


def test_ledger_digest_depends_on_every_part_and_their_order(home: Home) -> None:
    parts = committed_parts(Ledger(home.ledger / "ingest.jsonl"))
    digests = {ledger_digest(order) for order in (parts, parts[::-1], parts[:2], [])}
    assert len(digests) == 4


def test_ledger_lines_that_are_no_parts_are_damage(home: Home) -> None:
    ledger = Ledger(home.ledger / "ingest.jsonl")
    ledger.append({"part": "../../etc/passwd"})
    with pytest.raises(IntegrityError, match="line 4"):
        committed_parts(ledger)
