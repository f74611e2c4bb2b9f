"""Recipes trained on real stages: twice the same one, then one that cannot learn, killed and continued."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from support.builders.profiles import write_tiny_profile
from support.servers.forked_commands import run_command

from simic.contracts.results.recipes import RecipeComparison, RecipeTraining
from simic.runtime.home import Home

SEEDS = (0, 1, 2, 3)
DEADLINE_S = 240.0
RENT = ("-o", "curate.reward.rent=300", "-o", "train.network.first_epoch_penalty=0")
"""Growing at random costs much at this rent, so a policy that learned nothing is told from one that did."""


class Made(NamedTuple):
    """What is left of a recipe against itself, and of a comparison that was killed and continued."""

    home: Home
    profile: str
    twice: RecipeComparison
    arguments: tuple[str, ...]
    before: Mapping[Path, bytes]
    """Receipts of trainings when the process was killed."""
    found: RecipeComparison


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    root = tmp_path_factory.mktemp("ab")
    home = Home(root / "home")
    profile = write_tiny_profile(
        root / "tiny.toml", start="distil", rounds=0, horizon=6, min_experiences=20, min_episodes=3
    )
    twice = _compared(home, "ab", str(profile), str(profile), *RENT, "--seeds", "1", "--hosts", "2")
    (snapshot, _) = home.ab.glob("*/data/snapshots/*")
    arguments = (
        "ab", f"{profile} -o train.distil_passes=30", f"{profile} -o train.policy_lr=1e-6", *RENT, "--seeds", "4",
        "--hosts", "2", "--snapshot", str(snapshot),
    )  # fmt: skip
    known = set(home.ab.glob("*.json"))
    _kill_after(3 + len(known), home, arguments)
    before = {path: path.read_bytes() for path in home.ab.glob("*.json") if path not in known}
    return Made(home, str(profile), twice, arguments, before, _compared(home, *arguments))


def _compared(home: Home, *arguments: str) -> RecipeComparison:
    done = _simic(home, *arguments, "--json")
    assert done.returncode == 0, done.stderr
    return RecipeComparison.model_validate_json(done.stdout)


def _simic(home: Home, *arguments: str) -> subprocess.CompletedProcess[str]:
    return run_command(*arguments, env={**os.environ, "SIMIC_HOME": str(home.root)}, cwd=home.root.parent)


def _kill_after(trainings: int, home: Home, arguments: tuple[str, ...]) -> None:
    """Start the comparison and kill it when so many trainings have a receipt, which is within the next one."""
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(_simic, home, *arguments)
        limit = time.monotonic() + DEADLINE_S
        while len([*home.ab.glob("*.json")]) < trainings and not running.done() and time.monotonic() < limit:
            time.sleep(0.01)
        if not running.done():
            os.kill(int((home.locks / "ab").read_text("ascii")), signal.SIGKILL)  # it holds the lock under its own pid
        done = running.result()
    assert done.returncode == -signal.SIGKILL, done.stderr


def test_the_same_recipe_twice_differs_by_exactly_nothing(made: Made) -> None:
    """It is trained twice, each time from its own collection on."""
    first, again = made.twice.recipes
    assert (first.name, again.name) == ("tiny", "tiny (2)")
    assert first.config_digest == again.config_digest
    assert first.policies[0].policy_digest == again.policies[0].policy_digest is not None
    assert first.policies[0].episodes > 0
    assert len(list(made.home.ab.glob("*/data/snapshots/*"))) == 2
    (pair,) = made.twice.policies
    assert (pair.difference.mean, pair.difference.lower, pair.difference.upper, pair.p) == (0.0, 0.0, 0.0, 1.0)


def test_one_training_seed_says_nothing_about_recipes(made: Made) -> None:
    assert (made.twice.pairs, made.twice.least_p) == ([], 1.0)
    assert [one.spread for one in made.twice.recipes] == [None, None]


def test_a_recipe_that_cannot_learn_is_found_worse(made: Made) -> None:
    """Every training of the one is better than every training of the other."""
    (pair,) = made.found.pairs
    assert (pair.recipe, pair.against) == ("tiny train.distil_passes=30", "tiny train.policy_lr=1e-6")
    assert (pair.verdict, pair.u, pair.effect) == ("better", 16.0, 1.0)
    assert pair.adjusted_p == pytest.approx(2 / 70)
    assert made.found.recipes[1].settings == {"train.distil_passes": "2", "train.policy_lr": "1e-06"}
    assert pair.difference.mean > 0.0


def test_what_was_trained_before_the_kill_is_not_trained_again(made: Made) -> None:
    assert len(made.before) == 3
    assert {path: path.read_bytes() for path in made.before} == dict(made.before)


def test_drl03_trainings_take_turns_with_the_same_seeds(made: Made) -> None:
    digests = [one.config_digest for one in made.found.recipes]
    trained = [RecipeTraining.model_validate_json(path.read_bytes()) for path in made.home.ab.glob("*.json")]
    mine = sorted((one for one in trained if one.given_snapshot), key=lambda one: one.started_at)
    turns = [(digests.index(one.config_digest), one.seed) for one in mine]
    assert turns == [(0, 0), (1, 0), (1, 1), (0, 1), (0, 2), (1, 2), (1, 3), (0, 3)]
    assert all(one.given_snapshot == made.found.snapshot_digest for one in mine)
    assert all(one.seed in SEEDS and one.episodes == 0 for one in mine)


def test_figures_are_those_of_the_trials_which_the_views_have(made: Made) -> None:
    query = "SELECT receipt, controller, episode_return FROM trial_episodes ORDER BY controller, host_key"
    done = _simic(made.home, "sql", query, "--json")
    rows: list[dict[str, Any]] = [row for row in json.loads(done.stdout) if row["receipt"] == made.found.trials]
    returns = {
        recipe.name: np.array(
            [[row["episode_return"] for row in rows if row["controller"] == one.controller] for one in recipe.policies]
        )
        for recipe in made.found.recipes
    }
    ours, theirs = returns.values()
    assert ours.shape == (4, 10)
    (pair,) = made.found.pairs
    assert pair.difference.mean == pytest.approx((ours - theirs).mean())
    assert [one.mean for one in pair.by_seed] == pytest.approx((ours - theirs).mean(axis=1))
    assert {row["controller"] for row in rows} > {"wait"}
    *_, receipt = sorted((made.home.receipts / "ab").glob("*.json"))
    assert RecipeComparison.model_validate_json(receipt.read_bytes()).pairs == made.found.pairs


def test_a_recipe_stands_for_the_policy_that_was_trained_last_with_it(made: Made) -> None:
    policy = made.twice.recipes[0].policies[0].policy_digest
    (home,) = {path.parents[2] for path in made.home.ab.glob(f"*-0/data/policies/{policy}")}
    arms = (shlex.join([made.profile, *RENT]), "wait")
    done = _simic(Home(home), "compare", *arms, "--host-keys", "0:2", "--profile", made.profile, "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["pairs"][0]["controller"] == f"policy {str(policy)[:8]}"


def test_recipes_of_a_second_night_start_from_one_policy(made: Made) -> None:
    """It is sealed with the key of this home, and every training has a home of its own."""
    snapshot = str(next(iter(sorted(made.home.ab.glob("*/data/snapshots/*")))))
    trained = _simic(made.home, "train", "--snapshot", snapshot, "--profile", made.profile, *RENT, "--json")
    assert trained.returncode == 0, trained.stderr
    first = json.loads(trained.stdout)["digest"]
    recipes = (made.profile, f"{made.profile} -o train.lora.rank=2", f"{made.profile} -o train.ewc.weight=1000")
    more = ("--snapshot", snapshot, "--start", first[:12], "--seeds", "1", "--hosts", "2", "--against-first")
    found = _compared(made.home, "ab", *recipes, *RENT, *more)
    assert found.start_digest == first
    policies = [one.policies[0].policy_digest for one in found.recipes]
    assert len({first, *policies}) == 4 and None not in policies
    parts = [RecipeTraining.model_validate_json(path.read_bytes()) for path in made.home.ab.glob("*.json")]
    assert {one.policy_digest for one in parts if one.given_start == first} == {*policies}


def test_a_recipe_that_consults_karn_trains_it_on_the_same_snapshot(made: Made) -> None:
    """The policy of both is the same, so what differs is what Karn chose."""
    snapshot = next(iter(sorted(made.home.ab.glob("*/data/snapshots/*"))))
    words = ("ab", made.profile, f"{made.profile} -o controller.karn=consult", *RENT, "-o", "karn.min_examples=2")
    more = ("-o", "karn.passes=2", "--snapshot", str(snapshot), "--seeds", "1", "--hosts", "2")
    found = _compared(made.home, *words, *more)
    alone, consulting = (one.policies[0] for one in found.recipes)
    assert alone.policy_digest == consulting.policy_digest is not None
    assert alone.karn_digest is None
    (card,) = made.home.ab.glob(f"*/data/karn/{consulting.karn_digest}/card.json")
    assert json.loads(card.read_bytes())["snapshot_digest"] == found.snapshot_digest
    assert found.policies[0].difference.lower < found.policies[0].difference.upper
    refused = _simic(made.home, *words, "-o", "controller.karn=consult", "-o", "controller.karn_digest=01234567", *more)
    assert refused.returncode == 2
    assert "a recipe trains the Karn that it consults" in refused.stderr


def test_a_training_of_other_code_is_refused(made: Made) -> None:
    path = next(iter(made.before))
    right = path.read_bytes()
    path.write_text(json.dumps({**json.loads(right), "code_version": "0.0.1+other"}))
    refused = _simic(made.home, *made.arguments)
    path.write_bytes(right)
    assert refused.returncode == 2
    assert "found 0.0.1+other" in refused.stderr and "--fresh" in refused.stderr
