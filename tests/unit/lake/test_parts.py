"""A part is whole or absent, and counts only when listed."""

from __future__ import annotations

from pathlib import Path

import pyarrow.parquet as pq
import pytest
from pyarrow import fs as arrow_fs
from support.homes import NOW, land
from support.reports import episodes

from simic.contracts.errors import IntegrityError
from simic.lake.lake import open_lake
from simic.lake.log import read_state
from simic.lake.parts import check_part, committed_parts, ledger_digest, move_orphans_to_damaged
from simic.lake.store import ArrowParts, LocalParts
from simic.ledgers.ledger import Ledger
from simic.runtime.files import sha256_file
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
        check_part(LocalParts(home.experience), part)
        path = home.experience / part.part
        assert path.parent.name == f"{NOW:%Y-%m-%d}"
        assert pq.read_metadata(path).num_rows == part.rows
        assert (path.stat().st_size, sha256_file(path)) == (part.size_bytes, part.sha256)
        assert len(part.sources) == 1


def test_changed_and_missing_parts_are_noticed(home: Home) -> None:
    part = committed_parts(Ledger(home.ledger / "ingest.jsonl"))[0]
    path = home.experience / part.part
    content = bytearray(path.read_bytes())
    content[100] ^= 1
    path.write_bytes(content)
    with pytest.raises(IntegrityError, match="expected SHA-256"):
        check_part(LocalParts(home.experience), part)
    path.unlink()
    with pytest.raises(IntegrityError, match="not there"):
        check_part(LocalParts(home.experience), part)


def test_only_unlisted_parts_are_orphans(home: Home) -> None:
    state = read_state(Ledger(home.ledger / "ingest.jsonl"))
    listed = {path: path.read_bytes() for path in home.experience.glob("*/*.parquet")}
    orphan = home.experience / "day=2026-01-01" / "part-abc-0123456789abcdef.parquet"
    orphan.parent.mkdir()
    orphan.write_bytes(b"x")
    name = "day=2026-01-01/part-abc-0123456789abcdef.parquet"
    assert move_orphans_to_damaged(LocalParts(home.experience), state) == [name]
    assert (home.data / "damaged" / name).read_bytes() == b"x", "out of the way, and kept"
    assert {path: path.read_bytes() for path in home.experience.glob("*/*.parquet")} == listed


@pytest.mark.parametrize("kept", [0, 1])
def test_parts_of_a_ledger_that_is_no_more_are_no_orphans(tmp_path: Path, kept: int) -> None:
    """An older ledger, or none, beside a store with committed parts: nothing of it is touched."""
    home = Home(tmp_path)
    land(home, episodes(range(5)), batch_reports=20)
    path = home.ledger / "ingest.jsonl"
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:kept]))
    files = {file: file.read_bytes() for file in home.experience.rglob("*.parquet")}
    with pytest.raises(IntegrityError, match=rf"holds {5 - kept} parts that no ledger line names.*simic doctor"):
        land(home, episodes(range(9, 10)), batch_reports=20)
    assert {file: file.read_bytes() for file in home.experience.rglob("*.parquet")} == files


def test_a_prefix_belongs_to_one_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shared = tmp_path / "prefix"
    shared.mkdir()
    store = ArrowParts(arrow_fs.SubTreeFileSystem(str(shared), arrow_fs.LocalFileSystem()), "test://store")
    (shared / f"{NOW:%Y-%m-%d}").mkdir()
    monkeypatch.setattr("simic.lake.lake.connect_store", lambda _url: store)
    first, second = (Home(tmp_path / name, "s3://bucket/prefix") for name in ("a", "b"))
    land(first, episodes(range(1)), batch_reports=25)
    names = store.names()
    with pytest.raises(IntegrityError, match="belongs to home"):
        land(second, episodes(range(1, 2)), batch_reports=25)
    assert store.names() == names and not open_lake(second).parts
    land(first, episodes(range(2, 3)), batch_reports=25)
    assert len(open_lake(first).parts) == 2
    (shared / "simic-home").unlink()
    with pytest.raises(IntegrityError, match="holds 2 parts, but the ledger"):
        land(second, episodes(range(1, 2)), batch_reports=25)
    land(first, episodes(range(3, 4)), batch_reports=25)
    assert (shared / "simic-home").exists(), "a prefix from before gets its owner"


def test_ledger_digest_depends_on_every_part_and_their_order(home: Home) -> None:
    parts = committed_parts(Ledger(home.ledger / "ingest.jsonl"))
    digests = {ledger_digest(order) for order in (parts, parts[::-1], parts[:2], [])}
    assert len(digests) == 4


def test_ledger_lines_that_are_no_parts_are_damage(home: Home) -> None:
    ledger = Ledger(home.ledger / "ingest.jsonl")
    ledger.append({"part": "../../etc/passwd"})
    with pytest.raises(IntegrityError, match="line 4"):
        committed_parts(ledger)
