"""Receipts that decide, edited by hand: none of them promotes anything."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.builders.sealed_policies import validated
from support.homes.mlflow_databases import furnished_home
from support.servers.forked_commands import run_command

from simic.app import promotion
from simic.app.artifacts import artifacts_are_intact, resolve_training
from simic.app.container import Container
from simic.contracts.errors import IntegrityError
from simic.contracts.results.gate import GateDecision
from simic.contracts.results.receipts import TrainingReport
from simic.runtime.home import Home
from simic.runtime.settings import load_profile


@pytest.fixture
def app(home: Path, tmp_path_factory: pytest.TempPathFactory) -> Container:
    """A home in which a policy was trained and validated; the gate rejects it, for it is worse than waiting."""
    return Container(furnished_home(home, tmp_path_factory), load_profile("default"), 0)


def receipt_path(app: Container, stage: str) -> Path:
    (path,) = (app.home.receipts / stage).glob("*.json")
    return path


def edit(path: Path, change: Callable[[dict[str, Any]], object]) -> None:
    record = json.loads(path.read_text())
    change(record)
    path.write_text(json.dumps(record, indent=2))


def raise_bounds(record: dict[str, Any]) -> None:
    for estimate in record["differences"].values():
        estimate["lower"] = 5.0


def raise_everything(record: dict[str, Any]) -> None:
    """Such that nothing in the receipt contradicts itself."""
    candidate = record["trials"]["controllers"][-1]
    assert candidate["controller"] == "candidate"
    shift = 20.0
    candidate["returns"] = [value + shift for value in candidate["returns"]]
    for part in (candidate, *candidate["by_family"].values()):
        part["mean_return"] += shift
        for name in ("mean", "lower", "upper"):
            part["over_wait"][name] += shift
    for estimate in record["differences"].values():
        for name in ("mean", "lower", "upper"):
            estimate[name] += shift


def strip(record: dict[str, Any]) -> None:
    record.pop("signature", None)
    record.pop("key_id", None)


def promote(*arguments: str) -> subprocess.CompletedProcess[str]:
    return run_command("promote", *arguments)


def test_without_an_edit_the_gate_rejects_that_report(app: Container) -> None:
    validated(app, margin=-3.0)
    done = promote()
    assert (done.returncode, app.policies.champion_digest()) == (3, None), done.stderr


def test_an_untouched_report_of_a_better_policy_promotes_it(app: Container) -> None:
    report = validated(app)
    done = promote()
    assert (done.returncode, app.policies.champion_digest()) == (0, report.policy_digest), done.stderr


@pytest.mark.parametrize("is_named", [True, False], ids=["by path", "as the newest"])
@pytest.mark.parametrize("forge", [raise_bounds, raise_everything])
def test_an_edited_validation_receipt_promotes_nothing(
    app: Container, forge: Callable[[dict[str, Any]], None], is_named: bool
) -> None:
    validated(app, margin=-3.0)
    path = receipt_path(app, "validate")
    edit(path, forge)
    done = promote(*(["--validation", str(path)] if is_named else []))
    assert (done.returncode, app.policies.champion_digest()) == (1, None), done.stderr
    assert path.name in done.stderr
    assert "simic validate" in done.stderr


def test_a_validation_receipt_without_its_seal_promotes_nothing(app: Container) -> None:
    validated(app)
    edit(receipt_path(app, "validate"), strip)
    done = promote()
    assert (done.returncode, app.policies.champion_digest()) == (1, None), done.stderr
    assert "simic validate" in done.stderr


def test_a_validation_receipt_of_another_home_promotes_nothing(app: Container, tmp_path: Path) -> None:
    report = validated(app)
    elsewhere = Container(Home(tmp_path / "elsewhere"), app.config, 0)
    elsewhere.save_receipt(report)
    done = promote("--validation", str(receipt_path(elsewhere, "validate")))
    assert (done.returncode, app.policies.champion_digest()) == (1, None), done.stderr
    assert "not trusted" in done.stderr


def test_a_seal_of_one_stage_is_none_of_another(app: Container) -> None:
    """The signature of the training receipt, on an edited report."""
    validated(app, margin=-3.0)
    training = json.loads(receipt_path(app, "train").read_text())
    path = receipt_path(app, "validate")
    edit(path, lambda record: (raise_everything(record), record.update(signature=training.get("signature", "0" * 128))))
    assert promote("--validation", str(path)).returncode == 1
    assert app.policies.champion_digest() is None


def test_an_edited_gate_receipt_is_no_decision(app: Container) -> None:
    decision = promotion.decide(app, validated(app, margin=-3.0))
    assert not decision.accepted

    def accept(record: dict[str, Any]) -> None:
        record["accepted"] = True
        for criterion in record["criteria"]:
            criterion.update(verdict="PASS", value=1.0, bound=0.0, comparison=">")

    path = receipt_path(app, "gate")
    edit(path, accept)
    with pytest.raises(IntegrityError, match=path.name):
        app.receipts.latest(GateDecision, "")
    passed = [line for line in decision.model_dump()["criteria"] if line["verdict"] == "PASS"]
    forged = GateDecision.model_validate({**decision.model_dump(), "accepted": True, "criteria": passed})
    assert forged.digest == decision.digest
    assert not artifacts_are_intact(app, forged), "the store holds no such decision"


def test_edited_training_metrics_are_no_evidence(app: Container) -> None:
    """They go into the report of validation, where the gate asks whether the policy ever commits."""
    report = validated(app, margin=-3.0)
    path = receipt_path(app, "train")
    edit(path, lambda record: record["metrics"].update(commit_rate=0.99))
    with pytest.raises(IntegrityError, match=path.name):
        resolve_training(app, None)
    with pytest.raises(IntegrityError, match=path.name):
        promotion.record(app, report, promotion.decide(app, report))


def test_what_the_store_does_not_hold_sealed_is_not_intact(app: Container) -> None:
    """What Prefect stored of a task can be edited too; only what the store holds under the seal is taken up."""
    report = validated(app, margin=-3.0)
    training = app.receipts.latest(TrainingReport, "")
    decision = promotion.decide(app, report)
    assert all(artifacts_are_intact(app, receipt) for receipt in (report, training, decision))
    better = report.differences["wait"].model_copy(update={"lower": 1.0, "mean": 2.0, "upper": 3.0})
    assert not artifacts_are_intact(
        app, report.model_copy(update={"differences": dict.fromkeys(report.differences, better)})
    )
    assert not artifacts_are_intact(app, training.model_copy(update={"metrics": {"commit_rate": 1.0}}))
    assert not artifacts_are_intact(app, decision.model_copy(update={"accepted": True}))
    edit(receipt_path(app, "validate"), raise_bounds)
    assert not artifacts_are_intact(app, report)
