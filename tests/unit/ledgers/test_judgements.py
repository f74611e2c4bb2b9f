"""The ledger of judgements: one ordinal a judgement, whatever is killed, repeated, concurrent, cut or forged."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from support.builders.judged_candidates import NOW, SIGNER, decision, evidence_of, sealed_policy
from support.builders.judgements import judgement

from simic.catalogue.query import query
from simic.contracts.errors import IntegrityError
from simic.contracts.results.judgements import JudgementEntry
from simic.contracts.results.receipts import Provenance
from simic.ledgers.judgements import JudgementSubject, begin_judgement, check_judgements, judgement_of, judgements
from simic.ledgers.ledger import Ledger
from simic.numerics.spending import level
from simic.runtime.home import Home
from simic.trust.keys import Keyring
from simic.trust.sealed_receipts import seal_receipt

BUDGET = 0.025
POLICY = JudgementSubject("benchmark", "a" * 64, None, Provenance("0.1.0+0", "c" * 64, 0), "9" * 64)


@pytest.fixture
def home(tmp_path: Path) -> Home:
    place = Home(tmp_path)
    place.keys.mkdir(parents=True)
    (place.keys / f"{SIGNER.key_id}.pub").write_text(SIGNER.public_bytes.hex())
    return place


def begin(home: Home, subject: JudgementSubject = POLICY, **changes: Any) -> JudgementEntry:
    about = subject._replace(**changes)
    return begin_judgement(home, about, BUDGET, Keyring(home.keys), lambda: SIGNER, lambda: NOW)


def accept(home: Home, entry: JudgementEntry, *, is_sealed: bool = True) -> None:
    made = decision(entry.policy_digest).model_copy(update={"judgement": entry.judgement})
    record = seal_receipt(made, SIGNER)
    Ledger(home.ledger / "gates.jsonl").append(record if is_sealed else {**record, "champion_digest": "f" * 64})


def lines(home: Home) -> list[str]:
    return (home.ledger / "judgements.jsonl").read_text().splitlines(keepends=True)


def test_a_repeated_judgement_keeps_its_ordinal_and_every_other_one_gets_the_next(home: Home) -> None:
    first = begin(home)
    others: list[dict[str, Any]] = [
        {"policy_digest": "b" * 64}, {"champion_digest": "e" * 64}, {"set": "varied"}, {"world_digest": "8" * 64},
        {"provenance": Provenance("0.1.0+1", "c" * 64, 0)}, {"provenance": Provenance("0.1.0+0", "d" * 64, 0)},
        {"provenance": Provenance("0.1.0+0", "c" * 64, 1)},
    ]  # fmt: skip
    found = [begin(home, **changes) for changes in others]
    assert [first.ordinal, *(entry.ordinal for entry in found)] == list(range(1, 9))
    assert begin(home) == first, "as after a kill"
    assert [begin(home, **changes) for changes in others] == found
    assert judgements(home, Keyring(home.keys)) == [first, *found]
    assert [entry.alpha for entry in found] == [level(ordinal, BUDGET) for ordinal in range(2, 9)]
    assert found[-1].spent == pytest.approx(sum(level(ordinal, BUDGET) for ordinal in range(1, 9)))
    assert [entry.attempts for entry in (first, *found)] == [1, 2, 1, 3, 4, 5, 6, 7], "one is against a champion"


def test_judgements_at_the_same_time_share_no_ordinal(home: Home) -> None:
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda number: begin(home, policy_digest=f"{number:064x}"), range(16)))
    assert sorted(entry.ordinal for entry in found) == list(range(1, 17))


def test_the_level_of_an_accepted_candidate_passes_on_to_the_next_judgement(home: Home) -> None:
    first = begin(home)
    accept(home, first)
    second = begin(home, policy_digest="b" * 64)
    assert second.alpha == pytest.approx(first.alpha + level(2, BUDGET))
    assert second.spent == second.alpha, "a promotion spends nothing"
    third = begin(home, policy_digest="d" * 64)
    assert third.alpha == level(3, BUDGET), "the second judgement has no decision yet"
    assert third.spent == pytest.approx(second.alpha + third.alpha)


def test_an_edited_acceptance_passes_nothing_on(home: Home) -> None:
    accept(home, begin(home), is_sealed=False)
    with pytest.raises(IntegrityError, match=r"gates\.jsonl, line 1"):
        begin(home, policy_digest="b" * 64)


@pytest.mark.parametrize("kept", [[0, 1], [1, 2], [0, 2], [0, 2, 1]], ids=["the end", "the start", "between", "order"])
def test_lines_that_are_missing_or_moved_are_found(home: Home, kept: list[int]) -> None:
    for number in range(3):
        entry = begin(home, policy_digest=f"{number:064x}")
    accept(home, entry)
    whole = lines(home)
    (home.ledger / "judgements.jsonl").write_text("".join(whole[row] for row in kept))
    with pytest.raises(IntegrityError, match=r"judgements\.jsonl.*expected .* found .*backup"):
        check_judgements(home, Keyring(home.keys))
    with pytest.raises(IntegrityError):
        begin(home, policy_digest="f" * 64)


def test_the_view_has_every_attempt_and_its_outcome(home: Home) -> None:
    accept(home, begin(home))
    begin(home, policy_digest="b" * 64)
    rows = query(home, "SELECT ordinal, attempt, policy, alpha, spent, accepted FROM judgements ORDER BY ordinal")
    first, second = check_judgements(home, Keyring(home.keys))
    assert rows == [
        {"ordinal": 1, "attempt": 1, "policy": "a" * 64, "alpha": first.alpha, "spent": first.spent, "accepted": True},
        {"ordinal": 2, "attempt": 2, "policy": "b" * 64, "alpha": second.alpha, "spent": second.spent,
         "accepted": None},
    ]  # fmt: skip
    assert query(home, "SELECT DISTINCT ordinal, alpha FROM gates") == [{"ordinal": 1, "alpha": first.alpha}]


def test_an_edited_line_is_refused(home: Home) -> None:
    begin(home)
    record = json.loads(lines(home)[0])
    (home.ledger / "judgements.jsonl").write_text(json.dumps({**record, "alpha": 0.4}) + "\n")
    with pytest.raises(IntegrityError, match=r"judgements\.jsonl, line 1"):
        judgements(home, Keyring(home.keys))


def test_a_report_is_judged_only_as_what_the_ledger_says(home: Home) -> None:
    report = evidence_of(home, *sealed_policy(home, b"one")).validation
    keyring = Keyring(home.keys)
    with pytest.raises(IntegrityError, match=r"judgement 1, for which .* has nothing.*`simic validate` again"):
        judgement_of(home, report, keyring)
    own = Provenance(report.code_version, report.config_digest, report.seed)
    entry = begin(home, policy_digest=report.policy_digest, provenance=own)
    assert judgement_of(home, report, keyring) == entry.judgement == judgement(alpha=entry.alpha, spent=entry.alpha)
    for changes in ({"ordinal": 2}, {"seed": 1}, {"champion_digest": "e" * 64}, {"policy_digest": "e" * 64}):
        with pytest.raises(IntegrityError, match="evidence for judgement"):
            judgement_of(home, report.model_copy(update=changes), keyring)
