"""Receipts are kept, found again and told apart."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest
from support.builders.judged_candidates import NOW, SIGNER, decision, estimate, ticking, trials

from simic.app.receipts import ReceiptStore, content_digest
from simic.contracts.errors import ConfigError, ContractError
from simic.contracts.results.gate import GateDecision
from simic.contracts.results.trials import TrialReport
from simic.runtime.clock import Clock
from simic.runtime.home import Home
from simic.trust.keys import Keyring


def store_at(place: Path, clock: Clock) -> ReceiptStore:
    keyring = Keyring(Home(place).keys)
    keyring.trust(SIGNER.public_bytes)
    return ReceiptStore(Home(place), clock, lambda: SIGNER, keyring)


def test_the_newest_is_the_one_asked_for_last_even_if_its_work_was_done_long_ago(tmp_path: Path) -> None:
    store = store_at(tmp_path, ticking())
    new, old = decision("1" * 64), decision("2" * 64)
    old = old.model_copy(update={"finished_at": NOW - timedelta(days=9)})
    for receipt in (new, old):
        store.save(receipt)
    assert store.latest(GateDecision, "") == old
    assert store.find(GateDecision, lambda found: found.policy_digest == "1" * 64, "") == new


def test_receipts_of_one_moment_do_not_overwrite_each_other(tmp_path: Path) -> None:
    store = store_at(tmp_path, lambda: NOW)
    for receipt in (decision("1" * 64), decision("2" * 64)):
        store.save(receipt)
    assert len(list(tmp_path.rglob("*.json"))) == 2
    assert list(tmp_path.rglob("*.tmp")) == []


def test_the_last_one_is_the_newest_also_after_a_clock_that_was_ahead(tmp_path: Path) -> None:
    """Otherwise `simic promote` takes a policy that was judged before the one that was judged last."""
    moments = iter([NOW + timedelta(days=1), NOW, NOW + timedelta(minutes=1)])
    store = store_at(tmp_path, lambda: next(moments))
    for number in "123":
        receipt = decision(number * 64)
        store.save(receipt)
        assert store.latest(GateDecision, "") == receipt


def test_nothing_found_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="run `simic trials`"):
        store_at(tmp_path, ticking()).latest(TrialReport, "run `simic trials`")


def test_a_receipt_of_another_kind_or_a_torn_one_is_refused(tmp_path: Path) -> None:
    store = store_at(tmp_path, ticking())
    path = store.save(trials())
    with pytest.raises(ContractError, match="GateDecision"):
        store.read(GateDecision, path)
    path.write_text(path.read_text()[:-20])
    with pytest.raises(ContractError, match="TrialReport"):
        store.read(TrialReport, path)


def test_a_file_that_is_no_receipt_does_not_hide_the_receipts_beside_it(tmp_path: Path) -> None:
    store = store_at(tmp_path, ticking())
    path = store.save(decision("1" * 64))
    folder = path.parent
    (folder / "99999999T000000000000Z-text.json").write_text("garbage")
    (folder / "99999999T000000000000Z-deep.json").write_text("[" * 100_000)
    (folder / "99999999T000000000000Z-folder.json").mkdir()
    assert store.find(GateDecision, lambda found: found.policy_digest == "1" * 64, "").policy_digest == "1" * 64
    found = [path.name for path, _ in store.unreadable()]
    assert found == [f"99999999T000000000000Z-{what}.json" for what in ("deep", "folder", "text")]


def test_the_receipt_returned_is_the_one_that_was_judged_even_if_its_file_is_swapped_meanwhile(tmp_path: Path) -> None:
    """Both receipts are sealed; only the first is wanted."""
    store = store_at(tmp_path, ticking())
    path = store.save(decision("1" * 64))
    other = store_at(tmp_path / "elsewhere", ticking()).save(decision("2" * 64)).read_bytes()

    def swap(found: GateDecision) -> bool:
        path.write_bytes(other)
        return found.policy_digest == "1" * 64

    assert store.find(GateDecision, swap, "").policy_digest == "1" * 64


def test_content_does_not_depend_on_when_but_on_what() -> None:
    report = trials()
    later = report.model_copy(update={"started_at": NOW + timedelta(days=1), "finished_at": NOW + timedelta(days=2)})
    assert content_digest(report) == content_digest(later)
    row = report.controllers[-1].model_copy(update={"over_wait": estimate(4.5)})
    assert content_digest(report) != content_digest(
        report.model_copy(update={"controllers": [*report.controllers[:-1], row]})
    )
