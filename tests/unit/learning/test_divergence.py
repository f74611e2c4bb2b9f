"""A value that is not finite: the training goes back to its last checkpoint once, more carefully, and then fails."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from support.builders.learning import bandit_episodes
from support.builders.snapshots import write_snapshot
from support.faults.killed_training import run_training

from simic.contracts.errors import ContractError, DivergenceError, ResourceLimitError
from simic.contracts.results.receipts import SnapshotManifest, TrainingReport
from simic.contracts.settings.network import NetworkConfig
from simic.contracts.settings.safety import AnomalyConfig, SafetyConfig
from simic.contracts.settings.training import TrainConfig
from simic.learning import limits
from simic.learning.checkpoints import Checkpoints
from simic.learning.counted_passes import CountedPasses
from simic.learning.history import History
from simic.learning.learner import Learner
from simic.replay.dataset import GraphDataset
from simic.runtime.telemetry import read_metrics

SMALL = TrainConfig(
    network=NetworkConfig(hidden=8, layers=1),
    batch_sequences=8,
    cloning_passes=0,
    value_passes=1,
    vtrace_passes=2,
    min_experiences=10,
    min_commit_rate=0.0,
    checkpoint_updates=3,
)
UPDATES, BROKEN = 9, 8
"""Updates of the whole training, and the one that is disturbed; checkpoints are after 3, 6 and 9."""


@pytest.fixture(scope="module")
def snapshot(tmp_path_factory: pytest.TempPathFactory) -> SnapshotManifest:
    return write_snapshot(tmp_path_factory.mktemp("log") / "s", bandit_episodes(range(24)), split="train")


def spoil_batch(learner: Learner, real: Callable[..., Any], *arguments: Any) -> Any:
    """One reward of the batch is NaN."""
    spoiled = GraphDataset.batch

    def batch(self: GraphDataset, ids: Any) -> Any:
        found = spoiled(self, ids)
        found.rewards[0, 0] = torch.nan
        return found

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(GraphDataset, "batch", batch)
        return real(learner, *arguments)


def spoil_gradient(learner: Learner, real: Callable[..., Any], *arguments: Any) -> Any:
    """The gradient of one parameter is NaN, and the loss is not."""
    parameter = learner.network.value_parameters()[0]
    handle = parameter.register_hook(lambda gradient: gradient * torch.nan)
    try:
        return real(learner, *arguments)
    finally:
        handle.remove()


def spoil_weight(learner: Learner, real: Callable[..., Any], *arguments: Any) -> Any:
    """A weight turns NaN after the update."""
    result = real(learner, *arguments)
    learner.network.value_parameters()[0].data.view(-1)[0] = torch.nan
    return result


def disturb(patch: pytest.MonkeyPatch, spoil: Callable[..., Any], times: int) -> None:
    """Disturb update ``BROKEN``, the first ``times`` times that it is made."""
    real, left = Learner.update, times

    def update(self: Learner, *arguments: Any) -> Any:
        nonlocal left
        if self.history.done + 1 == BROKEN and left:
            left -= 1
            return spoil(self, real, *arguments)
        return real(self, *arguments)

    patch.setattr(Learner, "update", update)


@pytest.fixture(scope="module")
def calm(tmp_path_factory: pytest.TempPathFactory, snapshot: SnapshotManifest) -> TrainingReport:
    return run_training(tmp_path_factory.mktemp("calm"), snapshot, SMALL)


@pytest.mark.parametrize("spoil", [spoil_batch, spoil_gradient, spoil_weight])
def test_one_divergence_goes_back_to_the_checkpoint_with_half_the_rates(
    spoil: Callable[..., Any],
    tmp_path: Path,
    snapshot: SnapshotManifest,
    calm: TrainingReport,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    disturb(monkeypatch, spoil, times=1)
    report = run_training(tmp_path / "wild", snapshot, SMALL)
    assert (report.recoveries, report.updates) == (1, calm.updates)
    before, after = (list(read_metrics(Path(one.curves_path))) for one in (calm, report))
    assert len(before) == len(after) == UPDATES
    assert before[:6] == after[:6], "what the checkpoint covers stays"
    assert after[6][1]["lr_value"] == before[6][1]["lr_value"] / 2
    assert "goes on from checkpoint 0000000006-1 with halved learning rates" in caplog.text


def test_the_second_divergence_is_an_error_and_a_recovery_outlives_its_process(
    tmp_path: Path, snapshot: SnapshotManifest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process ends between the recovery and the next checkpoint: the rates stay halved, and once stays once."""
    with monkeypatch.context() as patch:
        disturb(patch, spoil_gradient, times=2)
        with pytest.raises(DivergenceError, match="diverged again with halved learning rates"):
            run_training(tmp_path, snapshot, SMALL)
    assert [path.name for path in (tmp_path / "policies").iterdir() if not path.name.startswith(".")] == []
    assert run_training(tmp_path, snapshot, SMALL).recoveries == 1


def raise_losses(patch: pytest.MonkeyPatch, updates: int) -> None:
    """The value loss rises over the first ``updates`` updates of V-trace that are made, and falls over the others."""
    real, left = CountedPasses._loss_of, updates

    def loss_of(self: CountedPasses, *arguments: Any) -> Any:
        nonlocal left
        loss = real(self, *arguments)
        sign, left = (1.0, left - 1) if left else (-1.0, 0)
        loss.metrics["value_loss"] = torch.tensor(sign * self.task.learner.updates)
        return loss

    patch.setattr(CountedPasses, "_loss_of", loss_of)


RISING = SMALL.model_copy(update={"vtrace_passes": 8, "safety": SafetyConfig(anomalies=AnomalyConfig(rising_passes=2))})
"""Passes 0, 1 and 2 of V-trace are updates 4 to 12, so two rises are known after update 13."""


def test_a_loss_that_keeps_rising_goes_back_to_the_checkpoint_with_half_the_rates(
    tmp_path: Path, snapshot: SnapshotManifest, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    raise_losses(monkeypatch, updates=10)
    report = run_training(tmp_path, snapshot, RISING)
    assert (report.recoveries, report.updates) == (1, 27)
    assert "the loss of phase vtrace has risen 2 times in a row from pass to pass, up to pass 2" in caplog.text
    assert "goes on from checkpoint 0000000012-1 with halved learning rates" in caplog.text


def test_a_loss_that_rises_again_after_the_recovery_ends_the_training(
    tmp_path: Path, snapshot: SnapshotManifest, monkeypatch: pytest.MonkeyPatch
) -> None:
    raise_losses(monkeypatch, updates=99)
    with pytest.raises(DivergenceError, match="diverged again with halved learning rates: the loss of phase vtrace"):
        run_training(tmp_path, snapshot, RISING)
    assert [path.name for path in (tmp_path / "policies").iterdir() if not path.name.startswith(".")] == []


def test_without_a_checkpoint_a_diverged_training_begins_again(
    tmp_path: Path, snapshot: SnapshotManifest, monkeypatch: pytest.MonkeyPatch
) -> None:
    disturb(monkeypatch, spoil_gradient, times=1)
    report = run_training(tmp_path, snapshot, SMALL.model_copy(update={"checkpoint_updates": 0}))
    assert (report.recoveries, report.updates) == (1, UPDATES)


def test_a_damaged_checkpoint_gives_way_to_the_one_before(
    tmp_path: Path,
    snapshot: SnapshotManifest,
    calm: TrainingReport,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    with monkeypatch.context() as patch:
        disturb(patch, lambda *_: 1 / 0, times=1)
        with pytest.raises(ZeroDivisionError):
            run_training(tmp_path / "hurt", snapshot, SMALL)
    (folder,) = (tmp_path / "hurt" / "policies").glob(".train-*/checkpoints")
    assert sorted(path.name for path in folder.iterdir()) == ["0000000003-0", "0000000006-0"]
    file = folder / "0000000006-0" / "tensors.safetensors"
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(bytes(content))
    assert run_training(tmp_path / "hurt", snapshot, SMALL).digest == calm.digest
    assert "checkpoint 0000000006-0 is not used and is removed" in caplog.text


@pytest.mark.parametrize(("line", "goes_on"), [(-1, "0000000003-0"), (0, None)], ids=["the newest", "all"])
def test_curves_that_changed_are_not_repeated(
    line: int,
    goes_on: str | None,
    tmp_path: Path,
    snapshot: SnapshotManifest,
    calm: TrainingReport,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A resumed training takes the metrics of its updates from them, so a checkpoint is bound to what it covers."""
    with monkeypatch.context() as patch:
        disturb(patch, lambda *_: 1 / 0, times=1)
        with pytest.raises(ZeroDivisionError):
            run_training(tmp_path, snapshot, SMALL)
    (file,) = (tmp_path / "policies").glob(".train-*/curves.jsonl")
    lines = file.read_bytes().splitlines(keepends=True)[:6]
    lines[line] = lines[line].replace(b'"recoveries": 0.0', b'"recoveries": 1.0')
    file.write_bytes(b"".join(lines))
    caplog.set_level("INFO")
    assert run_training(tmp_path, snapshot, SMALL).digest == calm.digest
    assert "checkpoint 0000000006-0 is not used and is removed: the curves that it covers have changed" in caplog.text
    assert ("training begins" in caplog.text) == (goes_on is None)
    assert goes_on is None or f"training goes on from checkpoint {goes_on}" in caplog.text


@pytest.mark.parametrize(
    ("changes", "is_same"), [({"max_hours": 12.0, "checkpoint_updates": 4}, True), ({"rho_bar": 2.0}, False)]
)
def test_only_a_training_of_the_same_bits_resumes(
    changes: dict[str, Any],
    is_same: bool,
    tmp_path: Path,
    snapshot: SnapshotManifest,
    calm: TrainingReport,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    with monkeypatch.context() as patch:
        disturb(patch, lambda *_: 1 / 0, times=1)
        with pytest.raises(ZeroDivisionError):
            run_training(tmp_path, snapshot, SMALL)
    caplog.set_level("INFO")
    assert run_training(tmp_path, snapshot, SMALL.model_copy(update=changes)).updates == UPDATES
    assert ("goes on from checkpoint 0000000006-0" in caplog.text) == is_same


@pytest.mark.parametrize(("name", "value"), [("max_hours", 1e-9), ("max_memory_gb", 1e-3)])
def test_a_limit_ends_the_training_and_a_higher_one_lets_it_go_on(
    name: str, value: float, tmp_path: Path, snapshot: SnapshotManifest, monkeypatch: pytest.MonkeyPatch
) -> None:
    check, calls = limits.TrainingLimits.check, 0

    def later(self: limits.TrainingLimits) -> None:
        nonlocal calls
        calls += 1
        if calls > BROKEN:
            check(self)

    monkeypatch.setattr(limits.TrainingLimits, "check", later)
    with pytest.raises(ResourceLimitError, match=f"more than train.{name}"):
        run_training(tmp_path, snapshot, SMALL.model_copy(update={name: value}))
    assert run_training(tmp_path, snapshot, SMALL).updates == UPDATES
    assert len((tmp_path / "batches.jsonl").read_text().splitlines()) == BROKEN + UPDATES - 6


def refuse(patch: pytest.MonkeyPatch, owner: type, name: str, times: int) -> None:
    """``owner.name`` raises ContractError the first ``times`` times, and beyond three times the test fails."""
    real, calls = getattr(owner, name), 0

    def refusing(self: Any, *arguments: Any) -> Any:
        nonlocal calls
        calls += 1
        assert calls <= 3, "the training never ends"
        if calls <= times:
            raise ContractError("a column is missing")
        return real(self, *arguments)

    patch.setattr(owner, name, refusing)


def test_a_contract_error_before_the_first_update_ends_the_training(
    tmp_path: Path, snapshot: SnapshotManifest, monkeypatch: pytest.MonkeyPatch
) -> None:
    refuse(monkeypatch, Learner, "update", times=9)
    with pytest.raises(ContractError, match="a column is missing"):
        run_training(tmp_path, snapshot, SMALL)


def test_a_training_that_begins_again_has_its_full_learning_rates(
    tmp_path: Path, snapshot: SnapshotManifest, calm: TrainingReport, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The checkpoint of a training that diverged cannot be repeated: nothing of that recovery stays."""
    with monkeypatch.context() as patch:
        disturb(patch, spoil_gradient, times=2)
        with pytest.raises(DivergenceError):
            run_training(tmp_path, snapshot, SMALL)
    refuse(monkeypatch, History, "_restore", times=1)
    report = run_training(tmp_path, snapshot, SMALL)
    assert (report.recoveries, report.digest) == (0, calm.digest)


def test_a_training_that_diverges_and_cannot_be_repeated_begins_again_only_once(
    tmp_path: Path, snapshot: SnapshotManifest, monkeypatch: pytest.MonkeyPatch
) -> None:
    disturb(monkeypatch, spoil_gradient, times=9)
    refuse(monkeypatch, History, "_restore", times=9)
    with pytest.raises(ContractError, match="a column is missing"):
        run_training(tmp_path, snapshot, SMALL)


def test_an_objective_that_does_not_say_that_it_resumes_trains_without_checkpoints(
    tmp_path: Path, snapshot: SnapshotManifest, calm: TrainingReport, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(CountedPasses, "is_resumable")
    monkeypatch.setattr(Checkpoints, "write", lambda *_: pytest.fail("a checkpoint was written"))
    assert run_training(tmp_path, snapshot, SMALL).digest == calm.digest
