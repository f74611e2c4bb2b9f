"""The journal of promotions: whatever is done to its lines shows, and what it says must be possible."""

from __future__ import annotations

import json
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from support.homes.champions import crown, journal_of, open_entry
from support.homes.pipeline import NOW, PROVENANCE

from simic.catalogue.query import query
from simic.contracts.errors import IntegrityError
from simic.contracts.results.receipts import PolicyVersion
from simic.ledgers.ledger import Ledger
from simic.ledgers.policies import champion_history, read_history
from simic.ledgers.promotions import Operation, Phase
from simic.runtime.home import Home
from simic.trust.keys import Keyring, Signer

LIVE = "SELECT number FROM policies WHERE is_live"


def version(number: int) -> PolicyVersion:
    moment = NOW + timedelta(hours=number)
    return PolicyVersion(
        **PROVENANCE._asdict(), started_at=moment, finished_at=moment, name="tamiyo", number=number,
        semantic_version=f"1.0.{number - 1}", digest=f"{number:064x}", reference=f"models:/tamiyo/{number}", aliases=[],
        previous=None, snapshot_digest="d" * 64, gate_digest="b" * 64, mlflow_run_id="r",
    )  # fmt: skip


@pytest.fixture
def home(tmp_path: Path) -> Home:
    """Three promotions, so six lines."""
    home = Home(tmp_path)
    for number in (1, 2, 3):
        crown(home, version(number))
    return home


def lines(home: Home, name: str = "promotions.jsonl") -> list[bytes]:
    return (home.ledger / name).read_bytes().splitlines(keepends=True)


def write(home: Home, content: list[bytes], name: str = "promotions.jsonl") -> None:
    (home.ledger / name).write_bytes(b"".join(content))


def edited(line: bytes, **changes: Any) -> bytes:
    return json.dumps({**json.loads(line), **changes}).encode() + b"\n"


def test_what_was_promoted_is_told_in_order(home: Home) -> None:
    history = champion_history(home)
    assert [entry.target for entry in history.done] == [1, 2, 3]
    assert [entry.phase for entry in history.entries] == [Phase.OPEN, Phase.DONE] * 3
    assert history.open_entry is None
    assert query(home, LIVE) == [{"number": 3}]
    former = history.before_champion()
    assert former is not None and former.target == 2


def test_a_rollback_restores_what_the_promotion_before_said(home: Home) -> None:
    crown(home, version(2), is_rollback=True)
    history = champion_history(home)
    assert history.champion is not None and history.champion.operation is Operation.ROLLBACK
    assert (history.champion.target, history.promotion(history.champion).target) == (2, 2)
    former = history.before_champion()
    assert former is not None and former.target == 1, "a second rollback goes further back, not forth again"
    assert query(home, LIVE) == [{"number": 2}]


@pytest.mark.parametrize("place", range(6))
def test_an_edited_line_is_named(home: Home, place: int) -> None:
    found = lines(home)
    found[place] = edited(found[place], reason="because I say so")
    write(home, found)
    with pytest.raises(IntegrityError, match=rf"promotions\.jsonl, line {place + 1}: .*does not match"):
        read_history(home)
    with pytest.raises(IntegrityError, match=f"line {place + 1}"):
        query(home, LIVE)


@pytest.mark.parametrize("place", range(5))
def test_a_removed_line_shows_at_the_one_after_it(home: Home, place: int) -> None:
    found = lines(home)
    del found[place]
    write(home, found)
    with pytest.raises(IntegrityError, match=rf"line {place + 1}: .*removed, inserted or moved"):
        read_history(home)


def test_a_whole_promotion_taken_out_shows(home: Home) -> None:
    found = lines(home)
    write(home, found[:2] + found[4:])
    with pytest.raises(IntegrityError, match=r"line 3: .*removed, inserted or moved"):
        read_history(home)


def test_a_line_told_twice_shows(home: Home) -> None:
    found = lines(home)
    write(home, [*found, *found[2:4]])
    with pytest.raises(IntegrityError, match=r"line 7: .*removed, inserted or moved"):
        read_history(home)


def test_lines_in_another_order_show(home: Home) -> None:
    found = lines(home)
    write(home, found[2:4] + found[:2] + found[4:])
    with pytest.raises(IntegrityError, match=r"line 1: .*removed, inserted or moved"):
        read_history(home)


def test_a_line_by_a_stranger_is_refused(home: Home) -> None:
    journal = journal_of(home)
    entry = open_entry(journal.read(), version(4))
    stranger = type(journal)(home.ledger, Keyring(home.keys), lambda: Signer(b"x" * 32))
    stranger.append(entry)
    with pytest.raises(IntegrityError, match=r"line 7: .*not trusted"):
        read_history(home)


@pytest.mark.parametrize("kept", [0, 2, 4])
def test_a_tail_that_was_cut_off_shows_against_the_list_of_champions(home: Home, kept: int) -> None:
    write(home, lines(home)[:kept])
    with pytest.raises(IntegrityError, match=rf"lists 3 changes of champion, but promotions\.jsonl knows {kept // 2}"):
        read_history(home)
    with pytest.raises(IntegrityError, match="last lines of the journal are missing"):
        query(home, LIVE)


def test_a_journal_that_is_gone_shows_against_the_list_of_champions(home: Home) -> None:
    (home.ledger / "promotions.jsonl").unlink()
    with pytest.raises(IntegrityError, match=r"lists 3 changes of champion, but promotions\.jsonl knows 0"):
        read_history(home)


@pytest.mark.parametrize("place", range(3))
def test_an_edited_list_of_champions_shows_against_the_journal(home: Home, place: int) -> None:
    found = lines(home, "policies.jsonl")
    found[place] = edited(found[place], digest="e" * 64)
    write(home, found, "policies.jsonl")
    with pytest.raises(
        IntegrityError, match=rf"policies\.jsonl, line {place + 1}: .*{'e' * 64}.*simic doctor --repair"
    ):
        read_history(home)
    with pytest.raises(IntegrityError, match="simic doctor --repair"):
        query(home, LIVE)


def test_a_list_that_lacks_the_last_champion_is_that_of_a_killed_process(home: Home) -> None:
    write(home, lines(home, "policies.jsonl")[:2], "policies.jsonl")
    assert query(home, LIVE) == [{"number": 3}]


@pytest.mark.parametrize(
    ("changes", "found"),
    [
        ({"accepted": False}, "says rejected, but its criteria give accepted"),
        ({"policy_digest": "e" * 64}, "expected digest"),
        ({"digest": "e" * 64}, "does not hold"),
    ],
)
def test_the_decision_that_let_the_champion_through_must_be_as_it_was(
    home: Home, changes: dict[str, Any], found: str
) -> None:
    told = lines(home, "gates.jsonl")
    told[2] = edited(told[2], **changes)
    write(home, told, "gates.jsonl")
    with pytest.raises(IntegrityError, match=found):
        champion_history(home)


def test_a_journal_of_an_earlier_version_is_refused(tmp_path: Path) -> None:
    home = Home(tmp_path)
    old = {"schema_version": 1, "entry": 1, "phase": "done", "operation": "promote", "source": None, "target": 1}
    Ledger(home.ledger / "promotions.jsonl").append(old)
    with pytest.raises(IntegrityError, match=r"earlier version of Simic did not sign.*new SIMIC_HOME"):
        read_history(home)


def test_a_countersignature_moves_nothing(home: Home) -> None:
    before = champion_history(home)
    journal = journal_of(home)
    after = journal.countersign("a new key", NOW, journal.read())
    assert champion_history(home) == after
    assert (after.champion, after.done, after.next_number) == (before.champion, before.done, before.next_number)
    crown(home, version(4))
    assert query(home, LIVE) == [{"number": 4}]


def test_signed_lines_that_cannot_follow_are_refused(home: Home) -> None:
    journal = journal_of(home)
    entry = open_entry(journal.read(), version(4))
    for wrong, found in [
        (entry.model_copy(update={"phase": Phase.DONE}), "did not open"),
        (entry.model_copy(update={"entry": 7}), "expected entry 4 after champion 3"),
        (entry.model_copy(update={"source": 1}), "expected entry 4 after champion 3"),
        (entry.model_copy(update={"restores": 1}), "cannot restore"),
        (entry.model_copy(update={"operation": Operation.ROLLBACK, "restores": 9}), "cannot restore"),
        (entry.model_copy(update={"operation": Operation.ROLLBACK, "restores": None}), "cannot restore"),
    ]:
        kept = (home.ledger / "promotions.jsonl").read_bytes()
        journal.append(wrong)
        with pytest.raises(IntegrityError, match=rf"line 7: .*{found}"):
            journal.read()
        (home.ledger / "promotions.jsonl").write_bytes(kept)


def test_once_something_was_staged_only_that_is_promoted(home: Home) -> None:
    journal = journal_of(home)
    staging = open_entry(journal.read(), version(4)).model_copy(update={"operation": Operation.STAGE})
    journal.append(staging)
    journal.append(staging.model_copy(update={"phase": Phase.DONE}))
    history = journal.read()
    assert history.staged is not None and history.staged.target == 4
    assert history.champion is not None and history.champion.target == 3
    kept = (home.ledger / "promotions.jsonl").read_bytes()
    for other in (version(5), version(4).model_copy(update={"gate_digest": "c" * 64})):
        journal.append(open_entry(journal.read(), other))
        with pytest.raises(
            IntegrityError, match=rf"line 9: it promotes version {other.number} .*but version 4 .*is staged"
        ):
            journal.read()
        (home.ledger / "promotions.jsonl").write_bytes(kept)
    promotion = open_entry(journal.read(), version(4))
    journal.append(promotion)
    history = journal.append(promotion.model_copy(update={"phase": Phase.DONE}))
    assert history.staged is None and history.champion is not None and history.champion.target == 4
    journal.append(open_entry(journal.read(), version(5)))
    with pytest.raises(IntegrityError, match="but nothing is staged"):
        journal.read()
