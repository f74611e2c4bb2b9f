"""Karn, the second model of the registry, on a real MLflow database: promotions of one never move the other."""

from __future__ import annotations

import json

import pytest
from mlflow.exceptions import MlflowException
from support.builders.judged_candidates import SIGNER, judged, ticking
from support.builders.judged_karns import judged_karn

from simic.contracts.errors import ConfigError, GateRejectedError, IntegrityError
from simic.contracts.names import KARN, MODEL_NAME
from simic.contracts.results.receipts import PolicyVersion
from simic.ledgers.policies import candidate_versions, read_history
from simic.ledgers.promotions import Phase
from simic.registry.mlflow_run import CandidateRecord
from simic.registry.mlflow_store import open_client
from simic.registry.promotion import OnStep
from simic.registry.registry import Registry
from simic.runtime.home import Home
from simic.trust.keys import Keyring

REFERENCE = "models:/karn@champion"
STEPS = ("staging aliased", "journalled", "aliased", "unstaged")
MOVED = ("aliased", "unstaged")


class Killed(BaseException):
    """Stands in for a signal: nothing of ours catches it."""


def registry_of(place: Home, model: str, on_step: OnStep = lambda _: None) -> Registry:
    return Registry(place, Keyring(place.keys), model=model, signer=lambda: SIGNER, clock=ticking(), on_step=on_step)


def crown(place: Home, evidence: CandidateRecord) -> PolicyVersion:
    registry = registry_of(place, evidence.validation.model)
    return registry.promote(registry.record(evidence), evidence.validation, evidence.gate)


@pytest.fixture
def policy(place: Home) -> PolicyVersion:
    return crown(place, judged(place, b"one"))


def test_karn_has_versions_aliases_and_a_champion_of_its_own(place: Home, policy: PolicyVersion) -> None:
    first = crown(place, judged_karn(place, policy.digest))
    second = crown(place, judged_karn(place, policy.digest, seed=1, champion=first.digest))
    assert (first.name, first.number, first.semantic_version, first.reference) == (KARN, 1, "1.0.0", "models:/karn/1")
    assert (second.number, second.previous) == (2, 1)
    policies, karns = registry_of(place, MODEL_NAME), registry_of(place, KARN)
    held = policies.champion()
    assert held is not None and (held.digest, held.number) == (policy.digest, 1), "the policy stays"
    assert karns.find(REFERENCE) == karns.champion() == second
    assert policies.differences() == karns.differences() == []
    assert (policies.count(), karns.count()) == (1, 2)
    assert [one.digest for one in candidate_versions(place)] == [policy.digest]
    entries = [json.loads(line) for line in (place.ledger / "promotions.jsonl").read_text("utf-8").splitlines()]
    assert [line["entry"] for line in entries if line["phase"] == "done"] == [1, 2, 3, 4, 5, 6]
    restored = karns.rollback("worse")
    assert (restored.digest, karns.champion()) == (first.digest, restored)
    with pytest.raises(ConfigError, match="no champion when version 1 was promoted"):
        policies.rollback("worse")
    assert karns.load(REFERENCE, place.tmp / "karn").joinpath("card.json").is_file()


def test_a_model_is_promoted_only_by_decisions_about_it(place: Home, policy: PolicyVersion) -> None:
    evidence = judged_karn(place, policy.digest)
    with pytest.raises(IntegrityError, match=r"of tamiyo, found .* of karn"):
        registry_of(place, MODEL_NAME).record(evidence)
    rejected = judged_karn(place, policy.digest, seed=1, accepted=False)
    registry = registry_of(place, KARN)
    with pytest.raises(GateRejectedError, match=r"Karn [0-9a-f]{12} did not pass the gate"):
        registry.promote(registry.record(rejected), rejected.validation, rejected.gate)
    assert registry.champion() is None


def test_a_decision_with_a_policy_that_is_champion_no_more_promotes_no_karn(place: Home, policy: PolicyVersion) -> None:
    evidence, registry = judged_karn(place, policy.digest), registry_of(place, KARN)
    version = registry.record(evidence)
    staged = registry.stage(version, evidence.validation, evidence.gate)
    assert staged.aliases == ["candidate", "staged"]
    crown(place, judged(place, b"two", champion=policy.digest))
    with pytest.raises(GateRejectedError, match=rf"judged with policy {policy.digest}.*--model karn"):
        registry.promote(version, evidence.validation, evidence.gate)
    unknown = evidence.gate.model_copy(update={"consulted_by": None})
    with pytest.raises(GateRejectedError, match="judged with policy none"):
        registry.stage(version, evidence.validation, unknown)
    assert registry.champion() is None


@pytest.mark.parametrize("fatal", STEPS)
def test_a_promotion_of_karn_cut_short_leaves_one_truth_and_policies_alone(
    place: Home, policy: PolicyVersion, fatal: str
) -> None:
    def die(step: str) -> None:
        if step == fatal:
            raise Killed

    evidence = judged_karn(place, policy.digest)
    registry = registry_of(place, KARN, die)
    with pytest.raises(Killed):
        registry.promote(registry.record(evidence), evidence.validation, evidence.gate)
    other = crown(place, judged(place, b"two", champion=policy.digest))  # while Karn's entry may be open
    assert other.digest == getattr(registry_of(place, MODEL_NAME).champion(), "digest", None)
    after = registry_of(place, KARN)
    held = after.champion()
    assert (None if held is None else held.digest) == (evidence.training.digest if fatal in MOVED else None)
    assert after.differences() == []
    assert read_history(place, model=KARN).open_entry is None
    listed = [json.loads(line)["name"] for line in (place.ledger / "policies.jsonl").read_text("utf-8").splitlines()]
    assert sorted(listed) == [*([KARN] if fatal in MOVED else []), MODEL_NAME, MODEL_NAME]
    third = crown(place, judged(place, b"three", champion=other.digest))
    assert third.digest == getattr(registry_of(place, MODEL_NAME).champion(), "digest", None)
    opened = [line.entry for line in read_history(place).lines if getattr(line, "phase", None) is Phase.OPEN]
    assert opened == list(range(1, len(opened) + 1)), "an entry that was ended late does not lend its number"


def test_mlflow_refuses_to_delete_the_model_and_the_doctor_restores_its_alias(
    place: Home, policy: PolicyVersion
) -> None:
    crown(place, judged_karn(place, policy.digest))
    client = open_client(place.tracking_uri)
    with pytest.raises(MlflowException, match="the registered model karn is not deleted"):
        client.delete_registered_model(KARN)
    client.delete_registered_model_alias(KARN, "champion")
    registry = registry_of(place, KARN)
    with pytest.raises(IntegrityError, match="champion is on no version"):
        registry.champion()
    registry.repair()
    assert registry.differences() == [] and registry.champion() is not None


def test_the_page_of_a_run_says_which_policy_consulted_karn(place: Home, policy: PolicyVersion) -> None:
    version = registry_of(place, KARN).record(judged_karn(place, policy.digest))
    client = open_client(place.tracking_uri)
    run = client.get_run(version.mlflow_run_id)
    assert client.get_experiment(run.info.experiment_id).name == "simic karn"
    assert run.data.metrics["gain_over_policy_alone_mean"] == 2.0
    assert policy.digest[:12] in run.data.tags["mlflow.note.content"]
    loadable = [
        "python_function" in one.read_text("utf-8") for one in place.artifacts.glob("models/*/artifacts/MLmodel")
    ]
    assert sorted(loadable) == [False, True], "Karn decides nothing alone"
