"""Torn ledgers, truncated parts, flipped bits: named and refused by everybody who reads, and never silently read."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.builders.reports import episode
from support.checks.lake_contents import ledger_of, parts_of
from support.homes.pipeline import TOPIC, curate_all, drop, ingest_all, land

from simic.catalogue.query import query
from simic.contracts.errors import IntegrityError
from simic.ledgers.ledger import Ledger
from simic.runtime.home import Home

Reader = Callable[[Home], Any]

READERS: dict[str, Reader] = {
    "sql": lambda home: query(home, "SELECT count(*) AS n FROM reports"),
    "curate": curate_all,
    "ingest": ingest_all,
}
FLIPS = 40


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Home:
    """Two parts, two ledger lines."""
    home = Home(tmp_path_factory.mktemp("filled"))
    land(home, episode(1), name="a")
    land(home, episode(2), name="b")
    return home


@pytest.fixture
def home(filled: Home, tmp_path: Path) -> Home:
    shutil.copytree(filled.root, tmp_path / "copy")
    return Home(tmp_path / "copy")


def last_part(home: Home) -> Path:
    return home.experience / parts_of(home)[-1].part


def refused_by_all(home: Home, naming: str) -> None:
    for name, reader in READERS.items():
        with pytest.raises(IntegrityError) as caught:
            reader(home)
        assert naming in str(caught.value), name


def test_a_ledger_torn_at_any_byte_of_its_last_line_is_the_ledger_before_it(home: Home) -> None:
    path = ledger_of(home)
    content = path.read_bytes()
    start = content.rfind(b"\n", 0, -1) + 1
    first, second = parts_of(home)
    for end in range(start, len(content)):
        path.write_bytes(content[:end])
        assert parts_of(home) == [first], end
    Ledger(path).append(second.model_dump(mode="json"))
    assert path.read_bytes() == content, "the torn line is cut off, not glued to the next"


@pytest.mark.parametrize("missing", [1, 2, 30, 300])
def test_what_a_torn_line_would_have_listed_lands_again(home: Home, missing: int) -> None:
    path = ledger_of(home)
    path.write_bytes(path.read_bytes()[:-missing])
    (delivery,) = (home.spool / TOPIC / "done").glob("b-*")
    delivery.rename(home.spool / TOPIC / "claimed" / delivery.name)
    receipt = ingest_all(home)
    assert (receipt.landed, receipt.duplicate) == (20, 0)
    assert query(home, "SELECT count(*) AS n, count(DISTINCT report_id) AS d FROM reports") == [{"n": 40, "d": 40}]
    assert len(list(home.experience.rglob("*.parquet"))) == 2


def test_a_damaged_byte_anywhere_before_is_an_alarm_that_names_the_line(home: Home) -> None:
    """Not skipped: a ledger that forgets a line forgets its reports, and would delete their part as an orphan."""
    path = ledger_of(home)
    content = path.read_bytes()
    for place in range(content.index(b"\n") + 1):
        path.write_bytes(content[:place] + b"\x00" + content[place + 1 :])
        with pytest.raises(IntegrityError, match="line 1: "):
            parts_of(home)


@pytest.mark.parametrize("reader", READERS.values(), ids=READERS)
def test_a_damaged_ledger_stops_every_reader_and_deletes_nothing(home: Home, reader: Reader) -> None:
    path, parts = ledger_of(home), sorted(home.experience.rglob("*.parquet"))
    path.write_bytes(path.read_bytes()[10:])
    with pytest.raises(IntegrityError, match=r"ingest\.jsonl, line 1"):
        reader(home)
    assert sorted(home.experience.rglob("*.parquet")) == parts


@pytest.mark.parametrize("keep", [0.0, 0.001, 0.5, 0.999])
def test_a_truncated_part_is_named_by_all_who_would_read_it(home: Home, keep: float) -> None:
    part = last_part(home)
    content = part.read_bytes()
    part.write_bytes(content[: int(keep * len(content))])
    refused_by_all(home, naming=part.name)


def test_a_lost_part_is_named_by_all_who_would_read_it(home: Home) -> None:
    part = last_part(home)
    part.unlink()
    refused_by_all(home, naming=part.name)


def test_a_flipped_bit_anywhere_in_a_part_is_never_read(home: Home) -> None:
    """Parquet itself would read one bit in three without a word, as another number."""
    part = last_part(home)
    whole = part.read_bytes()
    rng = random.Random(6)  # noqa: S311
    for _ in range(FLIPS):
        damaged = bytearray(whole)
        damaged[rng.randrange(len(whole))] ^= 1 << rng.randrange(8)
        part.write_bytes(bytes(damaged))
        with pytest.raises(IntegrityError, match=part.name):
            query(home, "SELECT count(*) AS n FROM reports")
    refused_by_all(home, naming=part.name)


def test_a_part_restored_from_a_backup_is_read_again(home: Home) -> None:
    part = last_part(home)
    whole = part.read_bytes()
    part.write_bytes(whole[:-1])
    refused_by_all(home, naming=part.name)
    part.write_bytes(whole)
    for reader in READERS.values():
        reader(home)


def test_a_damaged_part_lets_no_report_in_twice(home: Home) -> None:
    """The ids in a part are what recognises a report told twice; of a damaged part nobody knows what they say."""
    part = last_part(home)
    content = bytearray(part.read_bytes())
    content[len(content) // 2] ^= 1
    part.write_bytes(bytes(content))
    drop(home, "again", episode(2))
    with pytest.raises(IntegrityError, match=part.name):
        ingest_all(home)
    assert (home.spool / TOPIC / "incoming" / "again.jsonl").exists()


def test_a_damaged_snapshot_is_not_shown(home: Home) -> None:
    manifest = curate_all(home)
    steps = Path(manifest.path) / "steps.parquet"
    content = bytearray(steps.read_bytes())
    content[len(content) // 2] ^= 1
    steps.write_bytes(bytes(content))
    with pytest.raises(IntegrityError, match=r"steps\.parquet.*simic curate"):
        query(home, "FROM snapshots")
    assert curate_all(home).digest == manifest.digest
    assert len(query(home, "FROM snapshots")) == 1
