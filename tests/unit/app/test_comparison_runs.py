"""Comparisons in a real MLflow database: one run, and one below it per controller."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from support.homes.mlflow_databases import furnished_home

from simic.app.comparisons.comparison_runs import log_recipes
from simic.app.container import Container
from simic.cli.compare import compare
from simic.contracts.results.comparison import Comparison
from simic.contracts.results.recipes import RecipeArm, RecipeComparison, RecipePolicy
from simic.contracts.settings.run import RunConfig
from simic.registry.instrument_runs import INSTRUMENTS
from simic.registry.locations import locations
from simic.registry.mlflow_store import open_client
from simic.runtime.home import Home


@pytest.fixture
def place(home: Path, tmp_path_factory: pytest.TempPathFactory) -> Home:
    return furnished_home(home, tmp_path_factory)


def _compared(capsys: pytest.CaptureFixture[str]) -> Comparison:
    settings = ["world.horizon=4", "world.workers=1"]
    compare(["random", "wait"], world_set="benchmark", host_keys="0:6", override=settings, as_json=True)
    return Comparison.model_validate_json(capsys.readouterr().out)


def _runs(place: Home, stage: str) -> tuple[Any, dict[str, Any]]:
    """Return the run of a comparison and those below it by name."""
    client = open_client(place.tracking_uri)
    experiment = client.get_experiment_by_name(INSTRUMENTS).experiment_id
    found = client.search_runs([experiment], filter_string=f"tags.stage = '{stage}'")
    (parent,) = (run for run in found if "mlflow.parentRunId" not in run.data.tags)
    nested = [run for run in found if run.data.tags.get("mlflow.parentRunId") == parent.info.run_id]
    assert {run.info.status for run in found} == {"FINISHED"}
    assert len(found) == 1 + len(nested)
    return parent, {run.info.run_name: run for run in nested}


def test_a_comparison_has_a_run_and_one_below_it_per_controller(
    place: Home, capsys: pytest.CaptureFixture[str]
) -> None:
    found = _compared(capsys)
    parent, nested = _runs(place, "compare")
    rows = {row.controller: row for row in found.trials.controllers}
    assert parent.info.run_name == "compare: random, wait"
    assert set(nested) == set(rows) == {"random", "wait"}
    random = rows["random"]
    assert random.over_wait is not None
    metrics = nested["random"].data.metrics
    assert metrics["mean_return"] == random.mean_return
    assert metrics["gain_over_wait_lower"] == random.over_wait.lower
    assert "gain_over_wait_mean" not in nested["wait"].data.metrics
    assert nested["random"].data.params["hosts"] == "6"
    folder = place.artifacts / parent.info.run_id / "artifacts"
    table = json.loads((folder / "tables" / "pairs.json").read_text("utf-8"))
    assert table["data"][0][:4] == ["random", "wait", found.pairs[0].verdict.value, found.pairs[0].difference.mean]
    assert locations(place) == [], "nothing in the database points outside the home"


def test_runs_of_recipes_say_recipe_and_training_seed(place: Home, capsys: pytest.CaptureFixture[str]) -> None:
    trials = _compared(capsys).trials
    (receipt,) = (place.receipts / "trials").glob("*.json")
    policies = [
        RecipePolicy(
            seed=3, controller=controller, policy_digest=digest, failure=None if digest else "never commits",
            mean_return=50.0, train_s=1.0, episodes=9,
        )
        for controller, digest in (("random", "a" * 64), ("wait", None))
    ]  # fmt: skip
    arms = [
        RecipeArm(
            name=name, profile="quick", overrides=[], config_digest=digit * 64, settings={"train.distil_passes": digit},
            mean_return=50.0, over_wait=0.5, spread=None, test_accuracy=0.5, parameters=8, extra_compute=0.25,
            train_s=1.0, policies=[policy],
        )
        for name, digit, policy in zip(("one", "two"), "12", policies, strict=True)
    ]  # fmt: skip
    found = RecipeComparison(
        code_version="0.1.0+test", config_digest="c" * 64, seed=3, started_at=trials.started_at, seeds=[3], pairs=[],
        finished_at=trials.finished_at, set="benchmark", hosts_per_family=2, first_key=0, snapshot_digest=None,
        recipes=arms, least_p=1.0, is_against_first=False, policies=[], trials=f"trials/{receipt.name}",
    )  # fmt: skip
    log_recipes(Container(place, RunConfig(), 3), found)
    parent, nested = _runs(place, "ab")
    assert parent.info.run_name == "ab: one, two"
    params = nested["random"].data.params
    assert (params["recipe"], params["training_seed"], params["train.distil_passes"]) == ("one", "3", "1")
    assert params["policy_digest"] == "a" * 64
    assert "recipe" not in nested["wait"].data.params, "a training that failed has no policy"
