"""Receipts are kept, found again and told apart."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest
from support.judged import NOW, decision, estimate, ticking, trials

from simic.app.lineage import content_of
from simic.app.shelf import Shelf
from simic.app.verdict import rejection
from simic.contracts.errors import ConfigError, ContractViolation
from simic.contracts.receipts import GateDecision, TrialReport


def test_the_newest_is_the_one_asked_for_last_even_if_its_work_was_done_long_ago(tmp_path: Path) -> None:
    shelf = Shelf(tmp_path, ticking())
    new, old = decision("1" * 64), decision("2" * 64)
    old = old.model_copy(update={"finished_at": NOW - timedelta(days=9)})
    for receipt in (new, old):
        shelf.put(receipt, content=receipt.digest)
    assert shelf.newest(GateDecision, "") == old
    assert shelf.find(GateDecision, lambda found: found.policy_digest == "1" * 64, "") == new


def test_receipts_of_one_moment_do_not_overwrite_each_other(tmp_path: Path) -> None:
    shelf = Shelf(tmp_path, lambda: NOW)
    for receipt in (decision("1" * 64), decision("2" * 64)):
        shelf.put(receipt, content=receipt.digest)
    assert len(list(tmp_path.rglob("*.json"))) == 2
    assert list(tmp_path.rglob("*.tmp")) == []


def test_nothing_found_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="run `simic trials`"):
        Shelf(tmp_path, ticking()).newest(TrialReport, "run `simic trials`")


def test_a_receipt_of_another_kind_or_a_torn_one_is_refused(tmp_path: Path) -> None:
    shelf = Shelf(tmp_path, ticking())
    path = shelf.put(trials(), content="0" * 64)
    with pytest.raises(ContractViolation, match="GateDecision"):
        shelf.read(GateDecision, path)
    path.write_text(path.read_text()[:-20])
    with pytest.raises(ContractViolation, match="TrialReport"):
        shelf.read(TrialReport, path)


def test_content_does_not_depend_on_when_but_on_what() -> None:
    report = trials()
    later = report.model_copy(update={"started_at": NOW + timedelta(days=1), "finished_at": NOW + timedelta(days=2)})
    assert content_of(report) == content_of(later)
    row = report.controllers[-1].model_copy(update={"over_wait": estimate(4.5)})
    assert content_of(report) != content_of(report.model_copy(update={"controllers": [*report.controllers[:-1], row]}))


def test_a_rejection_names_what_did_not_pass_and_only_that() -> None:
    text = rejection(decision("1" * 64, accepted=False))
    assert "return_over_wait is -5, needs > 0" in text
    assert "episodes" not in text
    assert "stays live" in text
