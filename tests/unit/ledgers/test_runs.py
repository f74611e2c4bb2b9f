"""Which run a command continues."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest

from simic.ledgers.ledger import Ledger
from simic.ledgers.runs import RunEvent, RunIdentity, RunJournal

SAME = RunIdentity(profile="quick", seed=0, config_digest="0" * 64, code_version="0.1.0+abc")
CHAMPION = "1" * 64


@pytest.fixture
def journal(tmp_path: Path) -> RunJournal:
    return RunJournal(Ledger(tmp_path / "runs.jsonl"), lambda: datetime(2026, 1, 1, tzinfo=UTC))


def test_an_unfinished_run_goes_on_with_its_token_and_its_champion(journal: RunJournal) -> None:
    first = journal.open(SAME, CHAMPION)
    again = journal.open(SAME, None)
    assert first.event is RunEvent.OPENED
    assert again.event is RunEvent.RESUMED
    assert (again.token, again.start_digest, again.number) == (first.token, CHAMPION, 0)


def test_a_run_that_ended_is_followed_by_a_new_one(journal: RunJournal) -> None:
    first = journal.open(SAME, None)
    journal.close(first, "rejected")
    assert journal.open(SAME, None).token != first.token


def test_runs_are_numbered_in_the_order_in_which_they_began(journal: RunJournal) -> None:
    first = journal.open(SAME, None)
    assert (first.number, journal.open(SAME, None).number) == (0, 0), "resumed"
    journal.close(first, "rejected")
    second = journal.open(SAME, None)
    assert (second.number, journal.open(SAME, None).number) == (1, 1)
    assert journal.open(SAME.model_copy(update={"seed": 1}), None).number == 2


@pytest.mark.parametrize(
    "change", [{"profile": "default"}, {"seed": 1}, {"config_digest": "2" * 64}, {"code_version": "0.1.0+def"}]
)
def test_another_run_is_no_continuation_and_ends_the_claim_of_the_older(
    journal: RunJournal, change: dict[str, object]
) -> None:
    first = journal.open(SAME, None)
    other = journal.open(SAME.model_copy(update=change), None)
    assert other.event is RunEvent.OPENED
    assert other.token != first.token
    assert journal.open(SAME, None).event is RunEvent.OPENED
