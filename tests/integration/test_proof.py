"""A proof on real stages: killed, continued, and its figures against the episodes of its trials."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from support.builders.profiles import write_tiny_profile
from support.servers.forked_commands import run_command

from simic.contracts.results.proof import Proof, ProofTraining, ProofTrial
from simic.runtime.home import Home
from simic.trust.keys import Keyring
from simic.trust.seal import verify

BASELINES = ("wait", "random", "heuristic", "blind", "symptom", "oracle")
SEEDS = (0, 1)
DEADLINE_S = 240.0


class Made(NamedTuple):
    """What a proof left that was killed after its first training and then continued."""

    home: Home
    arguments: tuple[str, ...]
    before: Mapping[Path, bytes]
    """Receipts when the process was killed."""
    proof: Proof


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    root = tmp_path_factory.mktemp("proof")
    profile = write_tiny_profile(
        root / "tiny.toml", start="distil", rounds=0, horizon=6, min_experiences=20, min_episodes=3
    )
    home = Home(root / "home")
    arguments = (
        "proof", "--profile", str(profile), "--seeds", "2", "--hosts", "2", "--without", "noisy",
        "--out", str(root / "proof.md"),
    )  # fmt: skip
    _kill_after(home.proof / "trainings" / "benchmark-0.json", home, arguments)
    before = {path: path.read_bytes() for path in home.proof.glob("*/**/*.json") if _is_receipt(home, path)}
    done = _simic(home, *arguments, "--json")
    assert done.returncode == 0, done.stderr
    return Made(home, arguments, before, Proof.model_validate_json(done.stdout))


def _kill_after(receipt: Path, home: Home, arguments: tuple[str, ...]) -> None:
    """Start the proof and kill it when the receipt is there, which is within the next training."""
    environment = {**os.environ, "SIMIC_HOME": str(home.root)}
    process = subprocess.Popen([sys.executable, "-m", "simic", *arguments], env=environment, stderr=subprocess.PIPE)
    limit = time.monotonic() + DEADLINE_S
    while not receipt.exists() and process.poll() is None and time.monotonic() < limit:
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    _, said = process.communicate()
    assert process.returncode == -signal.SIGKILL, said


def _is_receipt(home: Home, path: Path) -> bool:
    """Return whether a file is the receipt of a part, not a file in the home of a training."""
    return path.parent in (home.proof / "trainings", *(home.proof / "trials").glob("*"))


def _simic(home: Home, *arguments: str) -> subprocess.CompletedProcess[str]:
    return run_command(*arguments, env={**os.environ, "SIMIC_HOME": str(home.root)}, cwd=home.root.parent)


def _trial(made: Made, name: str) -> ProofTrial:
    return ProofTrial.model_validate_json((made.home.proof / "trials" / "benchmark-2" / f"{name}.json").read_bytes())


def _training(made: Made, name: str) -> ProofTraining:
    return ProofTraining.model_validate_json((made.home.proof / "trainings" / f"{name}.json").read_bytes())


def test_what_was_finished_before_the_kill_is_not_made_again(made: Made) -> None:
    names = {path.stem for path in made.before}
    assert names >= {*BASELINES, "benchmark-0"}
    assert "benchmark-1" not in {path.stem for path in made.before if path.parent.name == "trainings"}
    assert {path: path.read_bytes() for path in made.before} == dict(made.before)


def test_figures_are_those_of_the_trials(made: Made) -> None:
    (found,) = made.proof.sets
    wait = np.array(_trial(made, "wait").returns)
    learned = np.array([_trial(made, f"benchmark-{seed}").returns for seed in SEEDS])
    assert learned.shape == (2, 10)
    assert list(found.over) == list(BASELINES)
    for name in BASELINES:
        assert found.over[name].mean == pytest.approx(np.mean(learned - _trial(made, name).returns))
    assert found.rows[-1].mean_return == pytest.approx(learned.mean())
    assert [one.over["wait"].mean for one in found.seeds] == pytest.approx((learned - wait).mean(axis=1))
    static = [_trial(made, f"benchmark-{seed}").static[0] for seed in SEEDS]
    assert all(one.epochs == [6] * 10 for one in static)
    rivals = np.array([one.returns for one in static])
    assert found.static[0].return_difference.mean == pytest.approx(np.mean(learned - rivals))
    assert [one.same for one in found.static] == ["epochs", "compute"]
    assert _trial(made, "wait").static == []
    (stranger,) = found.left_out
    rows = np.array(_trial(made, "wait").families) == "noisy"
    unmet = np.array([_trial(made, f"benchmark-{seed}-without-noisy").returns for seed in SEEDS])
    assert unmet.shape == (2, 2)
    assert stranger.left_out.mean == pytest.approx(np.mean(unmet - wait[rows]))
    assert stranger.trained_with.mean == pytest.approx(np.mean(learned[:, rows] - wait[rows]))


def test_receipts_alone_make_the_page_in_another_home(made: Made, tmp_path: Path) -> None:
    """So machines may share the trainings of a proof, and its figures may be checked without a training."""
    home = Home(tmp_path / "elsewhere")
    for path in made.home.proof.glob("*/**/*.json"):
        if _is_receipt(made.home, path):
            copied = home.proof / path.relative_to(made.home.proof)
            copied.parent.mkdir(parents=True, exist_ok=True)
            copied.write_bytes(path.read_bytes())
    done = _simic(home, *made.arguments, "--json")
    assert done.returncode == 0, done.stderr
    assert Proof.model_validate_json(done.stdout) == made.proof
    assert not any(path.is_dir() for path in (home.proof / "trainings").iterdir())
    (home.proof / "trials" / "benchmark-2" / "benchmark-0.json").unlink()
    refused = _simic(home, *made.arguments)
    assert refused.returncode == 2
    assert "copy that folder from the machine of the training" in refused.stderr


def test_each_policy_lies_sealed_in_the_home_of_its_training(made: Made) -> None:
    (found,) = made.proof.sets
    digests = set()
    for seed in SEEDS:
        training, home = _training(made, f"benchmark-{seed}"), Home(made.home.proof / "trainings" / f"benchmark-{seed}")
        assert training.policy_digest is not None
        assert verify(home.policies / training.policy_digest, Keyring(home.keys)).digest == training.policy_digest
        assert found.seeds[seed].policy_digest == training.policy_digest
        assert _trial(made, f"benchmark-{seed}").policy_digest == training.policy_digest
        (decision,) = (home.receipts / "gate").glob("*.json")
        assert json.loads(decision.read_text())["accepted"] == training.accepted == found.seeds[seed].accepted
        digests.add(training.policy_digest)
    assert len(digests) == 2


def test_the_family_left_out_is_in_no_report_of_its_training(made: Made) -> None:
    query = "SELECT DISTINCT family FROM episodes ORDER BY family"
    found = {}
    for name in ("benchmark-0", "benchmark-0-without-noisy"):
        done = _simic(Home(made.home.proof / "trainings" / name), "sql", query, "--json")
        assert done.returncode == 0, done.stderr
        found[name] = {row["family"] for row in json.loads(done.stdout)}
    assert "noisy" not in found["benchmark-0-without-noisy"]
    assert len(found["benchmark-0-without-noisy"]) == 4


def test_hosts_are_test_hosts_that_trials_do_not_take_by_default(made: Made) -> None:
    keys = _trial(made, "oracle").host_keys
    assert keys == _trial(made, "benchmark-1").host_keys
    assert min(keys) > 1000


def test_a_part_of_other_code_is_refused_and_made_again_if_asked(made: Made) -> None:
    path = made.home.proof / "trials" / "benchmark-2" / "blind.json"
    right = path.read_bytes()
    record: dict[str, Any] = json.loads(right)
    path.write_text(json.dumps({**record, "code_version": "0.0.1+other", "returns": [0.0] * 10}))
    refused = _simic(made.home, *made.arguments)
    assert refused.returncode == 2
    assert "found 0.0.1+other" in refused.stderr
    assert "--fresh" in refused.stderr
    done = _simic(made.home, *made.arguments, "--fresh", "--json")
    assert done.returncode == 0, done.stderr
    assert Proof.model_validate_json(done.stdout).sets == made.proof.sets
    times = {"started_at", "finished_at"}
    assert _without(json.loads(path.read_bytes()), times) == _without(json.loads(right), times)


@pytest.mark.parametrize(("field", "other"), [("world_digest", "0" * 64), ("torch_version", "0.4")])
def test_a_part_of_another_world_or_pytorch_is_refused(made: Made, field: str, other: str) -> None:
    """The code version covers neither an installed family, nor data that hosts read, nor PyTorch."""
    path = made.home.proof / "trainings" / "benchmark-0.json"
    right = path.read_bytes()
    path.write_text(json.dumps({**json.loads(right), field: other}))
    refused = _simic(made.home, *made.arguments)
    path.write_bytes(right)
    assert refused.returncode == 2
    assert f"expected {field}" in refused.stderr


def test_a_trial_of_another_kind_of_processor_is_refused(made: Made) -> None:
    path = made.home.proof / "trials" / "benchmark-2" / "wait.json"
    right = path.read_bytes()
    path.write_text(json.dumps({**json.loads(right), "processor": "abacus"}))
    refused = _simic(made.home, *made.arguments)
    path.write_bytes(right)
    assert refused.returncode == 2
    assert "expected processor" in refused.stderr


def test_a_part_that_is_no_receipt_is_made_again_only_if_asked(made: Made) -> None:
    """Such as a part of a version whose receipts have other fields."""
    path = made.home.proof / "trials" / "benchmark-2" / "wait.json"
    right = json.loads(path.read_bytes())
    path.write_text("{}")
    refused = _simic(made.home, *made.arguments)
    assert refused.returncode == 1
    assert "--fresh" in refused.stderr
    assert _simic(made.home, *made.arguments, "--fresh").returncode == 0
    times = {"started_at", "finished_at"}
    assert _without(json.loads(path.read_bytes()), times) == _without(right, times)


def _without(record: dict[str, Any], names: set[str]) -> dict[str, Any]:
    return {name: value for name, value in record.items() if name not in names}
