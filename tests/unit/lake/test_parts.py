"""A part is whole or absent, and counts only when listed."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from support.builders.reports import episodes
from support.homes.lakes import maintenance, shared_store
from support.homes.pipeline import NOW, TOPIC, FixedClock, ingest_all, land

from simic.bus.spool.bus import SpoolBus
from simic.contracts.errors import IntegrityError
from simic.lake.lake import open_lake
from simic.lake.log import read_state
from simic.lake.parts import check_part, committed_parts, ledger_digest, move_orphans_to_damaged
from simic.lake.store import ArrowParts, LocalParts
from simic.ledgers.ledger import Ledger
from simic.runtime.files import sha256_file
from simic.runtime.home import Home


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
    store = shared_store(tmp_path, monkeypatch)
    first, second = (Home(tmp_path / name, "s3://bucket/prefix") for name in ("a", "b"))
    land(first, episodes(range(1)), batch_reports=25)
    names = store.names()
    with pytest.raises(IntegrityError, match="belongs to home"):
        land(second, episodes(range(1, 2)), batch_reports=25)
    assert store.names() == names and not open_lake(second).parts
    land(first, episodes(range(2, 3)), batch_reports=25)
    assert len(open_lake(first).parts) == 2
    delete_claims(store)
    with pytest.raises(IntegrityError, match="holds 2 parts, but the ledger"):
        land(second, episodes(range(1, 2)), batch_reports=25)
    land(first, episodes(range(3, 4)), batch_reports=25)
    assert len(store.claims()) == 1, "a prefix without a claim gets one"


def delete_claims(store: ArrowParts) -> None:
    """As the runbook tells a person to."""
    for name in store.claims():
        store.drop_claim(name)


def test_of_two_copies_of_a_home_the_first_to_write_keeps_the_prefix(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = shared_store(tmp_path, monkeypatch)
    first = Home(tmp_path / "a", "s3://bucket/prefix")
    land(first, episodes(range(1)), batch_reports=25)
    shutil.copytree(first.root, tmp_path / "b")
    second = Home(tmp_path / "b", first.lake_url)
    land(second, episodes(range(1, 2)), batch_reports=25)
    names, ledger = store.names(), (first.ledger / "ingest.jsonl").read_bytes()
    with pytest.raises(IntegrityError, match=r"written by a copy of .*new home with another prefix.*delete the object"):
        land(first, episodes(range(2, 3)), batch_reports=25)
    with pytest.raises(IntegrityError, match="written by a copy of"):
        maintenance(first).compact()
    with pytest.raises(IntegrityError, match="written by a copy of"):
        maintenance(first).vacuum(grace_minutes=0)
    assert (store.names(), (first.ledger / "ingest.jsonl").read_bytes()) == (names, ledger)
    land(second, episodes(range(3, 4)), batch_reports=25)
    assert len(open_lake(second).parts) == 3


def test_a_home_that_moved_takes_its_prefix_along(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shared_store(tmp_path, monkeypatch)
    home = Home(tmp_path / "a", "s3://bucket/prefix")
    land(home, episodes(range(1)), batch_reports=25)
    moved = Home(home.root.rename(tmp_path / "b"), home.lake_url)
    land(moved, episodes(range(1, 2)), batch_reports=25)
    assert len(open_lake(moved).parts) == 2


def test_the_other_copy_goes_on_once_a_person_has_deleted_the_claim(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = shared_store(tmp_path, monkeypatch)
    home = Home(tmp_path / "a", "s3://bucket/prefix")
    land(home, episodes(range(1)), batch_reports=25)
    shutil.copytree(home.root, tmp_path / "b")
    copy = Home(tmp_path / "b", home.lake_url)
    ingest_all(copy)
    with pytest.raises(IntegrityError, match=r"test://store/simic-home\.\*"):
        land(home, episodes(range(1, 2)), batch_reports=25)
    delete_claims(store)
    ingest_all(home)
    assert len(open_lake(home).parts) == 2 and len(store.names()) == 2
    with pytest.raises(IntegrityError, match="written by a copy of"):
        ingest_all(copy)


@pytest.mark.parametrize("step", ["before", "after"])
def test_a_claim_killed_around_its_write_is_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    store = shared_store(tmp_path, monkeypatch)
    home = Home(tmp_path / "a", "s3://bucket/prefix")
    land(home, episodes(range(1)), batch_reports=25)
    add = store.add_claim

    def stop(name: str) -> None:
        if step == "after":
            add(name)
        raise KeyboardInterrupt

    for _ in range(2):
        monkeypatch.setattr(store, "add_claim", stop)
        with pytest.raises(KeyboardInterrupt):
            ingest_all(home)
    monkeypatch.setattr(store, "add_claim", add)
    land(home, episodes(range(1, 2)), batch_reports=25)
    assert len(open_lake(home).parts) == 2 and len(store.claims()) == 1


@pytest.mark.parametrize("is_copy", [True, False], ids=["copy", "new home"])
def test_of_two_homes_that_claim_at_once_the_second_withdraws(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_copy: bool
) -> None:
    """The other home claims and lands between the check and the claim of this one."""
    store = shared_store(tmp_path, monkeypatch)
    first, second = (Home(tmp_path / name, "s3://bucket/prefix") for name in ("a", "b"))
    if is_copy:
        land(first, episodes(range(1)), batch_reports=25)
        shutil.copytree(first.root, second.root)
    add = store.add_claim

    def add_after_the_other(name: str) -> None:
        monkeypatch.setattr(store, "add_claim", add)
        land(first, episodes(range(1, 2)), batch_reports=25)
        add(name)

    monkeypatch.setattr(store, "add_claim", add_after_the_other)
    with pytest.raises(IntegrityError, match="written by a copy of" if is_copy else "belongs to home"):
        land(second, episodes(range(2, 3)), batch_reports=25)
    assert store.names() == sorted(part.part for part in open_lake(first).parts)
    land(first, episodes(range(3, 4)), batch_reports=25)
    assert len(open_lake(first).parts) == 2 + is_copy, "the first goes on"


def test_a_home_that_sees_another_claim_beside_its_own_withdraws(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two that claim in the same instant both do, and either may try again."""
    store = shared_store(tmp_path, monkeypatch)
    home = Home(tmp_path / "a", "s3://bucket/prefix")
    land(home, episodes(range(1)), batch_reports=25)
    before, add = (store.names(), store.claims()), store.add_claim
    other = f"{(home.ledger / 'home.id').read_text()}.other"
    monkeypatch.setattr(store, "add_claim", lambda name: (add(name), add(other)))
    with pytest.raises(IntegrityError, match="written by a copy of"):
        ingest_all(home)
    store.drop_claim(other)
    assert (store.names(), store.claims()) == before
    monkeypatch.setattr(store, "add_claim", add)
    ingest_all(home)


def lose_the_claim(store: ArrowParts, monkeypatch: pytest.MonkeyPatch, instead: Sequence[str] = ()) -> None:
    """The claim is deleted, or another replaces it, as soon as the next part is in the store."""
    put = store.put

    def put_and_lose_the_claim(unfinished: Path, name: str) -> None:
        put(unfinished, name)
        delete_claims(store)
        for name in instead:
            store.add_claim(name)

    monkeypatch.setattr(store, "put", put_and_lose_the_claim)


@pytest.mark.parametrize("instead", [["a-copy.claims"], []], ids=["replaced", "deleted"])
def test_an_ingest_that_loses_its_claim_stops_before_the_ledger_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, instead: list[str]
) -> None:
    store = shared_store(tmp_path, monkeypatch)
    home = Home(tmp_path / "a", "s3://bucket/prefix")
    land(home, episodes(range(1)), batch_reports=25)
    lose_the_claim(store, monkeypatch, instead)
    with pytest.raises(IntegrityError, match="was deleted while this home wrote there"):
        land(home, episodes(range(1, 2)), batch_reports=25)
    assert len(open_lake(home).parts) == 1
    assert SpoolBus(home.spool).pending(TOPIC) == 1, "not acknowledged"


def test_maintenance_that_loses_its_claim_deletes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = shared_store(tmp_path, monkeypatch)
    home = Home(tmp_path / "a", "s3://bucket/prefix")
    for number in range(4):
        land(home, episodes(range(number, number + 1)), batch_reports=25, name=f"n{number}")
        if number == 1:
            maintenance(home).compact()
    assert len(open_lake(home).state.retired) == 2
    lose_the_claim(store, monkeypatch)
    names = set(store.names())
    later = FixedClock(NOW + timedelta(days=1))
    with pytest.raises(IntegrityError, match="was deleted while this home wrote there"):
        maintenance(home, later, compact_parts=2, grace_minutes=1).run_due()
    assert names < set(store.names())


def test_maintenance_does_not_claim_a_prefix_before_the_first_part(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The address may be mistyped, and a claim would refuse the home that owns it."""
    store = shared_store(tmp_path, monkeypatch)
    home = Home(tmp_path / "a", "s3://bucket/prefix")
    home.create()
    maintenance(home).compact()
    maintenance(home).vacuum(grace_minutes=0)
    assert not store.claims() and open_lake(home).state.url is None


def test_ledger_digest_depends_on_every_part_and_their_order(home: Home) -> None:
    parts = committed_parts(Ledger(home.ledger / "ingest.jsonl"))
    digests = {ledger_digest(order) for order in (parts, parts[::-1], parts[:2], [])}
    assert len(digests) == 4


def test_ledger_lines_that_are_no_parts_are_damage(home: Home) -> None:
    ledger = Ledger(home.ledger / "ingest.jsonl")
    ledger.append({"part": "../../etc/passwd"})
    with pytest.raises(IntegrityError, match="line 4"):
        committed_parts(ledger)
