"""A judgement promotes once: what replaced the policy since holds until another judgement, and the error names it."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.builders.judged_candidates import SIGNER, decision, evidence_of, judged, ticking

from simic.contracts.errors import GateRejectedError
from simic.contracts.results.receipts import PolicyVersion
from simic.ledgers.policies import read_history
from simic.registry.mlflow_run import CandidateRecord
from simic.registry.registry import Registry
from simic.runtime.home import Home
from simic.trust.keys import Keyring


@pytest.fixture
def registry(place: Home, keyring: Keyring) -> Registry:
    return Registry(place, keyring, signer=lambda: SIGNER, clock=ticking())


def crown(registry: Registry, evidence: CandidateRecord) -> PolicyVersion:
    return registry.promote(registry.record(evidence), evidence.validation, evidence.gate)


def test_the_rollback_that_replaced_the_policy_is_named(registry: Registry, place: Home) -> None:
    """And not an earlier one, which made it champion again."""
    first = crown(registry, judged(place, b"one"))
    evidence = judged(place, b"two", champion=first.digest)
    second = crown(registry, evidence)
    crown(registry, judged(place, b"three", champion=second.digest))
    registry.rollback("three is slow")
    registry.rollback("two panics")
    with pytest.raises(GateRejectedError, match=r"and a rollback replaced it \(two panics\); run `simic validate`"):
        crown(registry, evidence)


def test_a_promotion_that_replaced_the_policy_is_named_and_makes_the_next_judgement_another(
    registry: Registry, place: Home
) -> None:
    """As where prices change and change back, so each of two policies is better in its turn."""
    one = judged(place, b"one")
    first = crown(registry, one)
    evidence = judged(place, b"two", champion=first.digest)
    second = crown(registry, evidence)
    again = evidence_of(place, Path(one.training.path), first.digest, champion=second.digest, ordinal=2)
    assert crown(registry, again).number == first.number
    with pytest.raises(GateRejectedError, match=r"before, and version 1 replaced it; run `simic validate` for a judg"):
        crown(registry, evidence)
    history = read_history(place)
    assert [history.times_replaced(digest) for digest in (first.digest, second.digest)] == [1, 1]


def test_another_decision_on_the_same_judgement_promotes_nothing_either(registry: Registry, place: Home) -> None:
    """As that of a gate with one more criterion; the evidence is the same."""
    first = crown(registry, judged(place, b"one"))
    evidence = judged(place, b"two", champion=first.digest)
    second = crown(registry, evidence)
    registry.rollback("panics")
    again = evidence._replace(gate=decision(second.digest, champion=first.digest, how="in other words"))
    assert again.gate.digest != evidence.gate.digest
    with pytest.raises(GateRejectedError, match=r"by this judgement before, and a rollback replaced it \(panics\)"):
        crown(registry, again)
    later = evidence_of(place, Path(evidence.training.path), second.digest, champion=first.digest, ordinal=2)
    assert crown(registry, later).number == second.number
