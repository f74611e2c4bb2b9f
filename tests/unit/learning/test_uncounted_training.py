"""Trainings from a log with ``train.vtrace_passes = 0``, and logs without an episode to pass over."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.builders.learning import bandit_branches, bandit_episodes, may_fossilise
from support.builders.snapshots import write_snapshot
from support.builders.trainings import sealed

from simic.contracts.errors import TrainingError
from simic.contracts.results.receipts import SnapshotManifest
from simic.contracts.settings.network import NetworkConfig
from simic.contracts.settings.training import TrainConfig
from simic.learning.training_run import WarmStart

SMALL = TrainConfig(
    network=NetworkConfig(hidden=8, layers=1),
    batch_sequences=16,
    cloning_passes=1,
    value_passes=1,
    vtrace_passes=0,
    round_passes=2,
    min_experiences=10,
    min_commit_rate=0.0,
)


def log_of(path: Path) -> SnapshotManifest:
    return write_snapshot(path, may_fossilise(bandit_episodes(range(40))), split="train")


def test_without_counted_passes_the_supervised_phases_make_the_policy(tmp_path: Path) -> None:
    report = sealed(tmp_path, log_of(tmp_path / "s"), SMALL)
    assert report.updates == 2 * 3
    assert (report.episodes, report.passes) == (40, 0.0)
    assert 0.0 < report.metrics["commit_rate"] < 1.0
    assert 0.0 < report.metrics["mean_ratio"] <= 1.0
    start = WarmStart(Path(report.path), is_continuation=True)
    again = sealed(tmp_path, log_of(tmp_path / "next"), SMALL, start=start)
    assert again.passes == SMALL.round_passes


@pytest.mark.parametrize("settings", [{"objective": "cloning"}, {"cloning_passes": 0, "value_passes": 0}])
def test_a_training_without_any_pass_is_refused(tmp_path: Path, settings: dict[str, Any]) -> None:
    with pytest.raises(TrainingError, match=r"train\.vtrace_passes is 0, and nothing else would be learned"):
        sealed(tmp_path, log_of(tmp_path / "s"), SMALL.model_copy(update=settings))


def test_a_start_policy_has_no_supervised_phases(tmp_path: Path) -> None:
    first = sealed(tmp_path, log_of(tmp_path / "s"), SMALL)
    start = WarmStart(Path(first.path), is_continuation=False)
    with pytest.raises(TrainingError, match=r"train\.vtrace_passes is 0, and nothing else would be learned"):
        sealed(tmp_path, log_of(tmp_path / "next"), SMALL, start=start)


def test_branches_alone_have_no_episode_to_pass_over(tmp_path: Path) -> None:
    branches = write_snapshot(tmp_path / "branches", bandit_branches(range(40)), split="train")
    with pytest.raises(TrainingError, match="holds no episode besides branches and what they repeat"):
        sealed(tmp_path, branches, SMALL.model_copy(update={"start": "scratch"}))
