"""Several training seeds in one run, on real stages: one snapshot, one start, one set of validation hosts."""

from __future__ import annotations

import json
import os
import shutil
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from support.builders.profiles import write_tiny_profile
from support.servers.forked_commands import run_command

from simic.app.artifacts import resolve_training
from simic.app.container import Container
from simic.contracts.results.run import RunReceipt
from simic.contracts.results.trials import SeedChoice, TrialReport
from simic.contracts.splits import Split, split_of
from simic.runtime.home import Home
from simic.runtime.settings import load_profile


class Made(NamedTuple):
    """What a run with three seeds left behind."""

    home: Path
    receipt: RunReceipt
    choice: SeedChoice
    printed: str


def _simic(home: Path, *arguments: str) -> Any:
    return run_command(*arguments, env={**os.environ, "SIMIC_HOME": str(home)}, cwd=home.parent)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    root = tmp_path_factory.mktemp("seeds")
    profile = write_tiny_profile(root / "tiny.toml", rounds=1, horizon=6, min_experiences=20, min_episodes=3)
    done = _simic(root / "home", "run", "--profile", str(profile), "--training-seeds", "3", "--seed", "5")
    assert done.returncode in (0, 3), done.stderr
    (path,) = (root / "home" / "data" / "receipts" / "run").glob("*.json")
    receipt = RunReceipt.model_validate_json(path.read_bytes())
    assert receipt.choice is not None
    return Made(root / "home", receipt, receipt.choice, done.stdout)


def test_the_training_that_verbs_take_without_a_name_is_the_chosen_one(made: Made, tmp_path: Path) -> None:
    """A judgement spends a part of the error budget, so it must not go to a policy that the choice left out."""
    shutil.copytree(made.home / "data", tmp_path / "home" / "data")
    container = Container(Home(tmp_path / "home"), load_profile("default"), 0)
    assert resolve_training(container, None).digest == made.choice.policy_digest
    for number, one in enumerate(made.choice.seeds, start=1):
        later = made.choice.finished_at + timedelta(seconds=number)
        chosen = made.choice.model_copy(update={"policy_digest": one.policy_digest, "finished_at": later})
        container.save_receipt(chosen)
        assert resolve_training(container, None).digest == one.policy_digest


def test_policies_of_three_seeds_come_from_the_same_snapshot_and_start(made: Made) -> None:
    first, *last = made.receipt.trainings
    assert [one.seed for one in last] == [5, 6, 7]
    assert {(one.snapshot_digest, one.start_digest) for one in last} == {
        (made.receipt.snapshots[-1].digest, first.digest)
    }
    assert len({one.digest for one in last}) == 3
    assert {one.config_digest for one in last} == {made.receipt.config_digest}


def test_the_best_of_them_on_validation_hosts_is_judged_on_test_hosts(made: Made) -> None:
    folder = made.home / "data" / "receipts"
    record = json.loads((folder / made.choice.trials).read_text())
    fields = {name: value for name, value in record.items() if name in TrialReport.model_fields}
    tried = TrialReport.model_validate_json(json.dumps(fields))
    assert {split_of(tried.set, key) for key in tried.host_keys} == {Split.VALIDATION}
    returns = {row.controller: row.mean_return for row in tried.controllers}
    assert set(returns) == {"wait", *(one.controller for one in made.choice.seeds)}
    best = max(made.choice.seeds, key=lambda one: returns[one.controller])
    assert made.choice.policy_digest == best.policy_digest == made.receipt.validation.policy_digest
    judged = made.receipt.validation.trials
    assert {split_of(judged.set, key) for key in judged.host_keys} == {Split.TEST}


def test_the_spread_is_printed_and_every_seed_is_in_the_view_of_trials(made: Made) -> None:
    assert "3 training seeds on benchmark, 10 validation hosts" in " ".join(made.printed.split())
    assert f"{made.choice.training_seed} (candidate)" in made.printed
    query = f"SELECT controller, over_wait FROM trials WHERE receipt = '{made.choice.trials}' AND family IS NULL"  # noqa: S608
    rows = json.loads(_simic(made.home, "sql", query, "--json").stdout)
    found = {row["controller"]: row["over_wait"] for row in rows if row["controller"] != "wait"}
    assert found == pytest.approx({one.controller: one.over_wait.mean for one in made.choice.seeds})


def test_simic_train_makes_the_policy_of_a_seed_again(made: Made) -> None:
    """The receipt of a training names its training seed."""
    profile, last = made.home.parent / "tiny.toml", made.receipt.trainings[-1]
    first = made.receipt.trainings[0]
    options = ("--profile", str(profile), "-o", "train.seeds=3", "--snapshot", first.snapshot_digest)
    done = _simic(made.home, "train", *options, "--start", "nothing", "--seed", "5", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["digest"] == first.digest != last.digest
