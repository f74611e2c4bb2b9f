"""kill -9 in the middle of a training, again and again: it resumes, and every bit is that of an undisturbed one.

``SIMIC_TRAINING_KILLS=20`` kills each training twenty times, in place of two.
"""

from __future__ import annotations

import os
import random
import shutil
from pathlib import Path
from typing import Any

import pytest
from support.builders.learning import bandit_branches, bandit_episodes
from support.builders.snapshots import write_snapshot
from support.faults.killed_training import ENDINGS, PLACES, Kill, batches_of, in_process, run_training

from simic.contracts.results.receipts import SnapshotManifest, TrainingReport
from simic.contracts.settings.continual import CurriculumConfig, EwcConfig, LoraConfig
from simic.contracts.settings.network import NetworkConfig
from simic.contracts.settings.safety import AnomalyBounds, AnomalyConfig, ConservativeConfig, SafetyConfig
from simic.contracts.settings.training import TrainConfig
from simic.learning.training_run import WarmStart

KILLS = int(os.environ.get("SIMIC_TRAINING_KILLS", "2"))
SMALL = TrainConfig(
    network=NetworkConfig(hidden=8, layers=1),
    batch_sequences=8,
    cloning_passes=1,
    value_passes=1,
    vtrace_passes=3,
    round_passes=3,
    distil_passes=5,
    q_updates=3,
    ppo_epochs=2,
    ppo_max_kl=1e-3,
    min_experiences=10,
    min_commit_rate=0.0,
    checkpoint_updates=3,
)
TOUCHY = SafetyConfig(
    anomalies=AnomalyConfig(
        objective=AnomalyBounds(max_step_kl=1e-6, min_explained_variance=0.0),
        grace_updates=1,
        escalate_after=1,
        kl_updates=2,
    ),
    conservative=ConservativeConfig(healthy_updates=1),
)
"""Healthy updates count as anomalies, so that training becomes conservative and normal again."""
TRAININGS = (
    "vtrace", "ppo", "awr", "cloning", "fitted_q", "distil", "round", "prioritised", "conservative", "curriculum",
    "night", "lora", "ewc",
)  # fmt: skip
"""Objectives on a log from nothing, a distillation with V-trace on top, a later round, passes that are prioritised,
also in and out of conservative mode, or of a curriculum with a falling entropy bonus, and second nights from a policy:
with the pass counts of the first, with adapters, and held to the weights of a policy that has no Fisher information
yet."""
CHANGES: dict[str, dict[str, Any]] = {
    "distil": {},
    "round": {},
    "night": {},
    "prioritised": {"sampling": "prioritised"},
    "curriculum": {
        "curriculum": CurriculumConfig(
            enabled=True, min_episodes=(6, 6, 12, 24), max_episodes=(6, 6, 12, 24), success_error=1.5
        ),
        "vtrace_passes": 6,
        "entropy_bonus": 0.2,
        "entropy_bonus_last": 0.0,
    },
    "lora": {"lora": LoraConfig(rank=4)},
    "conservative": {"sampling": "prioritised", "safety": TOUCHY},
    "ewc": {"ewc": EwcConfig(weight=1e3)},
}
SNAPSHOTS = {
    "distil": "mixed", "curriculum": "ranked", "round": "more", "night": "more", "lora": "mixed", "ewc": "mixed",
}  # fmt: skip
"""Fixtures; the others train on ``log``."""


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("kills")


@pytest.fixture(scope="module")
def log(root: Path) -> SnapshotManifest:
    return write_snapshot(root / "log", bandit_episodes(range(24)), split="train")


@pytest.fixture(scope="module")
def ranked(root: Path) -> SnapshotManifest:
    difficulty = {key: key / 23 for key in range(24)}
    return write_snapshot(root / "ranked", bandit_episodes(range(24)), split="train", difficulty=difficulty)


@pytest.fixture(scope="module")
def more(root: Path) -> SnapshotManifest:
    return write_snapshot(root / "more", bandit_episodes(range(48)), split="train")


@pytest.fixture(scope="module")
def mixed(root: Path) -> SnapshotManifest:
    reports = [*bandit_branches(range(90)), *bandit_episodes(range(100, 124))]
    return write_snapshot(root / "mixed", reports, split="train")


@pytest.mark.parametrize("name", TRAININGS)
def test_a_killed_training_resumes_to_the_bit(name: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    config, start = SMALL.model_copy(update=CHANGES.get(name, {"objective": name})), None
    snapshot = request.getfixturevalue(SNAPSHOTS.get(name, "log"))
    if name in ("round", "night", "lora", "ewc"):
        first = run_training(tmp_path, request.getfixturevalue("log"), SMALL)
        start = WarmStart(Path(first.path), is_continuation=name == "round")
        (tmp_path / "batches.jsonl").unlink()
    whole, killed = tmp_path, tmp_path / "killed"
    shutil.copytree(tmp_path, killed)
    expected = run_training(whole, snapshot, config, start)
    batches = dict(batches_of(whole))
    steps = sorted(batches)
    draw = random.Random(name)  # noqa: S311
    last = len(steps) // SMALL.checkpoint_updates * SMALL.checkpoint_updates
    late = steps[2 * last // 3 : last]  # one kill at least is where what phases carry along has changed
    points = sorted(Kill(draw.choice(steps[:last] if n else late), draw.choice(PLACES)) for n in range(KILLS))
    lives = []
    for point in points:
        if (code := in_process(killed, snapshot, config, start, point)) == 0:
            break  # an earlier one died at the last checkpoint, so none followed
        lives.append(code)
    assert set(lives) == {-9}
    made_before = len(batches_of(killed))
    found = run_training(killed, snapshot, config, start)
    assert all(batches[step] == ids for step, ids in batches_of(killed)), "every batch is that of its update"
    resumed = [step for step, _ in batches_of(killed)[made_before:]]
    assert resumed == steps[len(steps) - len(resumed) :]
    assert code == 0 or len(resumed) < len(steps), "updates before a checkpoint are not made again"
    _assert_same(found, expected)
    assert (found.conservative_entries > 1) == (name == "conservative")


@pytest.fixture(scope="module")
def plain(root: Path, log: SnapshotManifest) -> TrainingReport:
    return run_training(root / "plain", log, SMALL)


@pytest.mark.parametrize("place", ENDINGS)
def test_a_training_killed_after_its_last_update_loses_nothing(
    place: str, log: SnapshotManifest, plain: TrainingReport, tmp_path: Path
) -> None:
    """Twice at the same place: the second life also ends there."""
    assert in_process(tmp_path, log, SMALL, None, Kill(0, place)) == -9
    made = len(batches_of(tmp_path))
    if place in ("policy sealed", "report not saved"):
        assert in_process(tmp_path, log, SMALL, None, Kill(0, place)) == -9
    found = run_training(tmp_path, log, SMALL)
    assert len(batches_of(tmp_path)) - made < 2 * SMALL.checkpoint_updates
    _assert_same(found, plain)
    assert [path.name for path in (tmp_path / "policies").iterdir()] == [plain.digest], "no working folder stays"


def _assert_same(found: TrainingReport, expected: TrainingReport) -> None:
    """The digest covers weights, moments, counters and pass counts."""
    assert found.digest == expected.digest
    assert (found.metrics, found.updates, found.recoveries) == (expected.metrics, expected.updates, 0)
    assert (found.anomalies, found.conservative_entries) == (expected.anomalies, expected.conservative_entries)
    assert Path(found.curves_path).read_bytes() == Path(expected.curves_path).read_bytes()
