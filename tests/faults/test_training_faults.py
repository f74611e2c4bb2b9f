"""Faults of a training that are neither kills nor NaN: full disks, batches that cannot be read, hanging, no memory."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from support.builders.learning import bandit_episodes
from support.builders.snapshots import write_snapshot
from support.faults.disturbed_training import BROKEN, SMALL, UPDATES, before_update, file_limit, without_memory
from support.faults.killed_training import run_training

from simic.contracts.errors import CircuitOpenError, OutOfMemoryError, UpdateTimeoutError
from simic.contracts.results.receipts import SnapshotManifest, TrainingReport
from simic.contracts.settings.continual import EwcConfig
from simic.learning import training_run
from simic.learning.safety import breaker
from simic.learning.safety.probe import PolicyProbe
from simic.replay.dataset import GraphDataset
from simic.runtime.telemetry import read_metrics

ROOM_FOR_CURVES = 24_000
"""Bytes: all curves fit into such a file, and no checkpoint."""


@pytest.fixture(scope="module")
def snapshot(tmp_path_factory: pytest.TempPathFactory) -> SnapshotManifest:
    return write_snapshot(tmp_path_factory.mktemp("log") / "s", bandit_episodes(range(24)), split="train")


@pytest.fixture(scope="module")
def calm(tmp_path_factory: pytest.TempPathFactory, snapshot: SnapshotManifest) -> TrainingReport:
    return run_training(tmp_path_factory.mktemp("calm"), snapshot, SMALL)


@pytest.fixture
def room() -> Iterator[Callable[[int | None], None]]:
    yield file_limit
    file_limit(None)


def test_a_checkpoint_that_cannot_be_written_is_counted_and_the_training_goes_on(
    tmp_path: Path,
    snapshot: SnapshotManifest,
    calm: TrainingReport,
    room: Callable[[int | None], None],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    before_update(monkeypatch, 4, lambda: room(ROOM_FOR_CURVES))
    before_update(monkeypatch, 8, lambda: room(None))
    assert run_training(tmp_path, snapshot, SMALL).digest == calm.digest
    assert "failure 1 of 3 of circuit breaker storage: [Errno 27] File too large" in caplog.text
    assert "goes on from" not in caplog.text


def test_a_curve_is_never_left_out_and_a_storage_breaker_that_stays_open_is_an_error_that_resumes(
    tmp_path: Path,
    snapshot: SnapshotManifest,
    calm: TrainingReport,
    room: Callable[[int | None], None],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """No more room in the middle of a line."""

    def nearly_full() -> None:
        (curves,) = tmp_path.glob("policies/.train-*/curves.jsonl")
        room(curves.stat().st_size + 100)

    with monkeypatch.context() as patch:
        before_update(patch, BROKEN, nearly_full)
        with pytest.raises(CircuitOpenError, match=r"storage stays open.* File too large"):
            run_training(tmp_path, snapshot, SMALL)
    room(None)
    caplog.set_level("INFO")
    found = run_training(tmp_path, snapshot, SMALL)
    assert "goes on from checkpoint 0000000006-0" in caplog.text
    assert found.digest == calm.digest
    assert Path(found.curves_path).read_bytes() == Path(calm.curves_path).read_bytes()


def test_room_that_comes_back_while_the_breaker_is_open_lets_the_training_go_on(
    tmp_path: Path,
    snapshot: SnapshotManifest,
    room: Callable[[int | None], None],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """It goes on in conservative mode."""

    def nearly_full() -> None:
        (curves,) = tmp_path.glob("policies/.train-*/curves.jsonl")
        room(curves.stat().st_size + 100)

    caplog.set_level("INFO")
    before_update(monkeypatch, BROKEN, nearly_full)
    real = breaker.Breakers.__init__
    monkeypatch.setattr(breaker.Breakers, "__init__", lambda self, config: real(self, config, lambda _: room(None)))
    report = run_training(tmp_path, snapshot, SMALL)
    assert (report.updates, report.conservative_entries) == (UPDATES, 1)
    assert "circuit breaker storage is open" in caplog.text
    assert "circuit breaker storage is closed again" in caplog.text
    assert "training is conservative (breaker_open)" in caplog.text
    assert len(Path(report.curves_path).read_text().splitlines()) == UPDATES


def test_checkpoints_that_fail_again_and_again_end_the_training_although_curves_can_be_written(
    tmp_path: Path,
    snapshot: SnapshotManifest,
    calm: TrainingReport,
    room: Callable[[int | None], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    config = SMALL.model_copy(update={"checkpoint_updates": 1})
    with monkeypatch.context() as patch:
        before_update(patch, 4, lambda: room(ROOM_FOR_CURVES))
        with pytest.raises(CircuitOpenError, match=r"storage stays open.* File too large"):
            run_training(tmp_path, snapshot, config)
    room(None)
    assert len((tmp_path / "batches.jsonl").read_text().splitlines()) == 6, "the third failure opened the breaker"
    assert run_training(tmp_path, snapshot, config).digest == calm.digest


def unreadable(patch: pytest.MonkeyPatch, times: int) -> None:
    real, left = GraphDataset.batch, times

    def batch(self: GraphDataset, ids: Any) -> Any:
        nonlocal left
        if left:
            left -= 1
            raise OSError(5, "Input/output error")
        return real(self, ids)

    patch.setattr(GraphDataset, "batch", batch)


def test_a_batch_that_cannot_be_read_is_read_again(
    tmp_path: Path, snapshot: SnapshotManifest, calm: TrainingReport, monkeypatch: pytest.MonkeyPatch
) -> None:
    before_update(monkeypatch, BROKEN, lambda: unreadable(monkeypatch, times=3))
    assert run_training(tmp_path, snapshot, SMALL).digest == calm.digest


def test_a_sampling_breaker_that_stays_open_ends_the_training_and_it_resumes(
    tmp_path: Path, snapshot: SnapshotManifest, calm: TrainingReport, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        before_update(patch, BROKEN, lambda: unreadable(patch, times=99))
        with pytest.raises(CircuitOpenError, match=r"sampling stays open: after 5 failures .* Input/output error"):
            run_training(tmp_path, snapshot, SMALL)
    assert run_training(tmp_path, snapshot, SMALL).digest == calm.digest


def test_an_update_that_hangs_is_ended_and_a_longer_deadline_resumes(
    tmp_path: Path, snapshot: SnapshotManifest, calm: TrainingReport, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The deadline is no part of the training's identity."""

    def hang() -> None:
        while True:
            time.sleep(0.01)

    short = SMALL.model_copy(update={"safety": SMALL.safety.model_copy(update={"update_timeout_s": 2.0})})
    with monkeypatch.context() as patch:
        before_update(patch, BROKEN, hang)
        with pytest.raises(UpdateTimeoutError, match="an update took more than 2 s"):
            run_training(tmp_path, snapshot, short)
    made = len((tmp_path / "batches.jsonl").read_text().splitlines())
    assert run_training(tmp_path, snapshot, SMALL).digest == calm.digest
    assert len((tmp_path / "batches.jsonl").read_text().splitlines()) == made + UPDATES - 6


def test_an_update_without_memory_is_repeated_in_halves_and_the_next_is_conservative(
    tmp_path: Path, snapshot: SnapshotManifest
) -> None:
    assert without_memory(tmp_path, snapshot, times=1) == 1
    (policy,) = (path for path in (tmp_path / "policies").iterdir() if not path.name.startswith("."))
    assert len((tmp_path / "curves" / f"{policy.name}.jsonl").read_text().splitlines()) == UPDATES


def test_a_training_that_never_gets_its_memory_ends_with_a_typed_error(
    tmp_path: Path, snapshot: SnapshotManifest, calm: TrainingReport
) -> None:
    assert without_memory(tmp_path, snapshot, times=999) == -1
    assert [path.name for path in (tmp_path / "policies").iterdir() if not path.name.startswith(".")] == []
    assert run_training(tmp_path, snapshot, SMALL).digest == calm.digest


def test_a_step_without_memory_goes_back_to_the_checkpoint_and_on_in_conservative_mode(
    tmp_path: Path, snapshot: SnapshotManifest, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Such a step may have been made in part, so nothing but the checkpoint is left."""
    real = torch.optim.AdamW.step

    def refused(*_arguments: Any) -> None:
        monkeypatch.setattr(torch.optim.AdamW, "step", real)
        raise MemoryError("no room")

    before_update(monkeypatch, BROKEN, lambda: monkeypatch.setattr(torch.optim.AdamW, "step", refused))
    report = run_training(tmp_path, snapshot, SMALL)
    assert "from checkpoint 0000000006-0 in conservative mode: there is no memory for the moments" in caplog.text
    assert (report.updates, report.recoveries, report.conservative_entries) == (UPDATES, 0, 1)
    modes = [metrics["conservative_mode"] for _, metrics in read_metrics(Path(report.curves_path))]
    assert modes == [0.0] * 6 + [1.0] * 3


@pytest.mark.parametrize(
    ("owner", "name", "checkpoints"),
    [(training_run, "memory_of", 4), (training_run, "memory_of", 3), (PolicyProbe, "measure", 3)],
    ids=["behind the last update", "behind a checkpoint of it", "after an update"],
)
def test_memory_that_is_missing_beside_the_updates_again_and_again_ends_the_training(
    tmp_path: Path, snapshot: SnapshotManifest, monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, checkpoints: int
) -> None:
    """The updates up to that point are made again each time, which is no success."""
    asked = 0

    def refused(*_arguments: Any) -> Any:
        nonlocal asked
        asked += 1
        assert asked < 9, "the training begins again without end"
        raise MemoryError("no room")

    monkeypatch.setattr(owner, name, refused)
    config = SMALL.model_copy(update={"ewc": EwcConfig(weight=1.0), "checkpoint_updates": checkpoints})
    with pytest.raises(OutOfMemoryError, match="learner stays open"):
        run_training(tmp_path, snapshot, config)
    assert asked == 3, "two failures open the breaker, and one more attempt is made"
