"""Several training seeds in one run: the flow around them; trainings and trials are stood in for."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.fakes import stages as fake_stages
from support.fakes.stages import calls
from support.servers.flow_runs import FlowRuns

from flows.retrain import run
from simic.contracts.errors import IntegrityError
from simic.contracts.results.run import RunReceipt
from simic.contracts.results.trials import SeedChoice
from simic.registry.mlflow_store import open_client
from simic.runtime.home import Home

pytestmark = pytest.mark.usefixtures("prefect_server")

SEEDS = {"train.seeds": 3}


def _run() -> RunReceipt:
    return run(profile="quick", seed=7, overrides=SEEDS)


def _stages(lines: list[str]) -> list[str]:
    return [line.split()[0] for line in lines]


def test_the_last_snapshot_is_trained_on_with_every_seed_and_the_chosen_policy_is_judged(
    home: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "simic")
    fake_stages.install(monkeypatch)
    receipt = _run()
    asked = calls(home)
    before, last = asked[:7], [line for line in asked[7:] if line.startswith("train")]
    assert _stages(asked)[3:] == [
        "train",
        "collect",
        "ingest",
        "curate",
        "train",
        "train",
        "train",
        "choose",
        "validate",
    ]
    assert not any("seed" in line for line in before), "earlier rounds have one training"
    assert last[1:] == [f"{last[0]} seed 8", f"{last[0]} seed 9"], "from the same snapshot and start"
    assert [one.seed for one in receipt.trainings] == [7, 7, 8, 9]

    choice = receipt.choice
    assert choice is not None
    assert choice.policy_digest == receipt.trainings[2].digest == receipt.validation.policy_digest
    assert asked[-1] == f"validate {choice.policy_digest[:6]} against nobody"
    assert receipt.version is not None
    (line,) = [line for line in caplog.messages if line.startswith("round 1 of 1: choose: 3 training seeds")]
    assert line.endswith(f"policy {choice.policy_digest[:12]} of seed 8 is judged")

    metrics = open_client(Home(home).tracking_uri).get_run(receipt.version.mlflow_run_id).data.metrics
    found = {name: metrics[f"training_seeds_{name}"] for name in ("mean", "spread", "least", "greatest")}
    assert found == pytest.approx({name: getattr(choice, name) for name in found})


def test_one_seed_makes_no_choice(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_stages.install(monkeypatch, has_registry=False)
    receipt = run(profile="quick", seed=7, overrides={"train.seeds": 1})
    assert receipt.choice is None
    assert len(receipt.trainings) == 2
    assert "choose" not in _stages(calls(home))


def test_l18_a_run_killed_between_two_seeds_goes_on_with_the_missing_one(
    home: Path, flow_runs: FlowRuns, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_stages.install(monkeypatch, has_registry=False)
    flow_runs.kill_at("train 4", seed=7, **SEEDS)
    before = calls(home)
    receipt = _run()
    again = calls(home)[len(before) :]
    assert receipt.is_resumed
    assert again[0] == before[-1]
    assert before[-1].endswith("seed 9")
    assert _stages(again) == ["train", "choose", "validate", "record", "promote", "publish"]
    assert [one.seed for one in receipt.trainings] == [7, 7, 8, 9]


def test_a_choice_that_names_another_policy_is_refused(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Such as one that was edited where Prefect stores results."""
    fake_stages.install(monkeypatch, has_registry=False)

    def edited(*arguments: object) -> SeedChoice:
        return fake_stages.choose_seed(*arguments).model_copy(update={"policy_digest": "f" * 64})  # type: ignore[arg-type]

    monkeypatch.setattr("simic.app.training_seeds.choose_seed", edited)
    with pytest.raises(IntegrityError, match="names policy ffffffffffff, which is none of"):
        _run()
