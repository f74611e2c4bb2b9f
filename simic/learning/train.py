"""Train a policy from a snapshot and seal it; equal snapshot, start and seed give an equal digest.

A training that was killed goes on from its newest checkpoint, with the same bits (``history``). One that diverges goes
back to it once, with half the learning rates; one that runs out of memory goes back to it in conservative mode.
"""

from __future__ import annotations

import logging
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch

from simic.contracts.config import WITHOUT_EFFECT, TrainConfig
from simic.contracts.errors import (
    CircuitOpenError,
    ContractError,
    DivergenceError,
    IntegrityError,
    OutOfMemoryError,
    TrainingError,
)
from simic.contracts.receipts import Provenance, SnapshotManifest, TrainingReport
from simic.contracts.safety import Trigger
from simic.controllers.policy_files import describe, save_policy
from simic.learning.checkpoints import Checkpoint, Checkpoints
from simic.learning.continual.memory import write_memory
from simic.learning.devices import choose_device, numerics, placed
from simic.learning.history import History
from simic.learning.learner_state import write_state
from simic.learning.limits import TrainingLimits
from simic.learning.phases import Record
from simic.learning.safety.breaker import Breakers
from simic.learning.safety.guard import Guard
from simic.learning.safety.memory import out_of_memory_typed
from simic.learning.safety.probe import PolicyProbe
from simic.learning.safety.watchdog import Watchdog
from simic.learning.training_run import TrainingRun, WarmStart
from simic.replay.dataset import GraphDataset
from simic.runtime.clock import Clock
from simic.runtime.files import atomic_write, move_to_damaged, publish_dir
from simic.runtime.telemetry import JsonLinesSink, NullObserver, TrainingObserver, Update
from simic.snapshots.manifest import read_manifest
from simic.trust.canonical import digest_of
from simic.trust.keys import Signer
from simic.trust.seal import seal

__all__ = ["SealedPolicy", "TrainingOutput", "load_training_data", "publish_sealed", "train"]

_LOG = logging.getLogger(__name__)
CURVES_FOLDER = "curves"
"""Folder beside the policies: curves are not part of a policy's digest."""


class SealedPolicy(NamedTuple):
    """Path and digest of a sealed policy, and the path of its curves."""

    path: Path
    digest: str
    curves: Path


class TrainingOutput:
    """The working folder of one training run; a killed run leaves it, and the same run resumes from it or clears it."""

    def __init__(
        self, out_root: Path, snapshot_digest: str, start_digest: str | None, seed: int, *, is_continuation: bool
    ) -> None:
        self._root = out_root
        self._previous = start_digest if is_continuation else None
        name = f".train-{snapshot_digest[:12]}-{(start_digest or 'fresh')[:12]}-{seed}"
        self._folder = out_root / name
        self._curves = self._folder / "curves.jsonl"

    def checkpoints(self, training: str, signer: Signer, verify: Callable[[Path], str]) -> Checkpoints:
        """Return the checkpoints in this folder of a training that ``training`` identifies."""
        return Checkpoints(self._folder / "checkpoints", self._curves, training, signer, verify)

    def open_curves(self, checkpoints: Checkpoints, checkpoint: Checkpoint | None) -> JsonLinesSink:
        """Open the curves cut back to a checkpoint, or in a cleared folder.

        New curves of a later round begin with those of earlier rounds, if they exist.
        """
        if checkpoint is None:
            self._clear()
        checkpoints.begin(checkpoint)
        return JsonLinesSink(self._curves)

    def _clear(self) -> None:
        shutil.rmtree(self._folder, ignore_errors=True)
        self._folder.mkdir(parents=True)
        if self._previous is not None and (earlier := self._curves_of(self._previous)).is_file():
            shutil.copyfile(earlier, self._curves)
        else:
            self._curves.touch()

    def seal(
        self,
        training: TrainingRun,
        signer: Signer,
        verify: Callable[[Path], str],
        snapshot: SnapshotManifest,
        sets: Sequence[str],
        provenance: Provenance,
    ) -> SealedPolicy:
        """Seal the policy at ``<root>/<digest>``; an intact one that exists already stays, as it has the same bytes.

        The working folder stays until ``remove``: a training that is killed before resumes from it.
        """
        network, folder = training.policy(), self._folder / "policy"
        card = describe(
            network.eval(),
            training.config.network,
            set_name="+".join(sets),
            snapshot_digest=snapshot.digest,
            code_version=provenance.code_version,
            config_digest=provenance.config_digest,
            germinated=training.germinated,
            feature_ranges=training.feature_ranges,
        )
        shutil.rmtree(folder, ignore_errors=True)  # what a kill left
        save_policy(folder, network, card)
        write_state(folder, training.state(snapshot.digest), training.learner.network, training.learner.optimizer)
        if training.memory is not None:
            write_memory(folder, training.memory)
        digest = seal(folder, signer).digest
        target, curves = publish_sealed(folder, self._root, digest, verify), self._curves_of(digest)
        curves.parent.mkdir(parents=True, exist_ok=True)
        atomic_write(curves, self._curves.read_bytes())  # a copy: the checkpoints need their own
        return SealedPolicy(target, digest, curves)

    def remove(self) -> None:
        """Remove the working folder with its checkpoints, once the report is saved."""
        shutil.rmtree(self._folder, ignore_errors=True)

    def _curves_of(self, digest: str) -> Path:
        return self._root.with_name(CURVES_FOLDER) / f"{digest}.jsonl"


def publish_sealed(folder: Path, root: Path, digest: str, verify: Callable[[Path], str]) -> Path:
    """Move a sealed folder to ``root/digest`` and return that; an intact one there stays, as it has the same bytes."""
    target = root / digest
    if target.exists() and not _is_whole(target, digest, verify):
        _LOG.warning("%s was damaged and is set aside as %s", target, move_to_damaged(target))
    if not target.exists():
        publish_dir(folder, target)
    return target


def _is_whole(path: Path, digest: str, verify: Callable[[Path], str]) -> bool:
    try:
        return verify(path) == digest
    except IntegrityError:
        return False


COLUMNS_NAME = "columns"
"""Folder beside the policies with the mapped columns of snapshots larger than ``train.replay.max_mb``."""
_NO_OBSERVER = NullObserver()
PROGRESS_TOTAL = 100
"""Unit of ``on_progress``: per cent."""


def train(
    snapshot: SnapshotManifest,
    config: TrainConfig,
    *,
    blueprints: tuple[str, ...],
    start: WarmStart | None,
    out_root: Path,
    signer: Signer,
    verify: Callable[[Path], str],
    observer: TrainingObserver = _NO_OBSERVER,
    seed: int,
    provenance: Provenance,
    clock: Clock,
    on_progress: Callable[[int], None] | None,
    resume: bool = False,
    save: Callable[[TrainingReport], TrainingReport] = lambda report: report,
) -> TrainingReport:
    """Train on the training split of ``snapshot`` and seal the policy at ``out_root/<digest>``.

    A snapshot larger than ``config.replay.max_mb`` is mapped from files beside ``out_root``.

    Args:
        blueprints: those that the policy is to know; the rows name no others.
        verify: returns the digest of a sealed policy or raises IntegrityError; called before a policy is read or kept.
        observer: follows the training; it does not affect what is learned.
        on_progress: called with increments in per cent that sum to at most 100.
        resume: whether an unfinished training of the same snapshot, start, seed, settings and code goes on.
        save: stores the report and returns it; the checkpoints are removed after that.

    Raises:
        TrainingError: for too little experience, or a policy that stops growing.
        DivergenceError: for a second loss, gradient or weight that is not finite, or a second loss that keeps rising.
        ResourceLimitError: beyond ``config.max_hours`` or ``config.max_memory_gb``, or without memory for an update.
        CircuitOpenError: if curves, checkpoints or batches can be neither written nor read, after a pause.
        UpdateTimeoutError: if an update takes longer than ``config.safety.update_timeout_s``.
        IntegrityError: if snapshot or start policy are damaged.
        ContractError: if rows or start policy do not fit.
        ConfigError: for a device that this machine does not have, or settings that do not fit each other.
    """
    started_at = clock()
    device = choose_device(config.device)
    store = placed(load_training_data(snapshot, config, blueprints, out_root.parent / COLUMNS_NAME), device)
    start_digest = None if start is None else verify(start.path)
    is_continuation = start is not None and start.is_continuation
    output = TrainingOutput(out_root, snapshot.digest, start_digest, seed, is_continuation=is_continuation)
    decisive = _decisive(config, snapshot, start_digest, seed, is_continuation=is_continuation)
    chosen = {"blueprints": list(blueprints), "code": provenance.code_version, "device": device.type}
    identity = digest_of({**decisive, **chosen})
    checkpoints = output.checkpoints(identity, signer, verify)
    checkpoint = checkpoints.newest() if resume else None
    if resume:
        _LOG.info("training %s", "begins" if checkpoint is None else f"goes on from checkpoint {checkpoint.path.name}")
    observer.begin({"buffer_size": float(store.step_count), "buffer_memory_mb": store.memory_bytes / (1 << 20)})
    attempts = _Attempts(config, checkpoints, output, observer, on_progress)
    with numerics(config, device):
        training = attempts.run(lambda history: TrainingRun.begin(store, config, start, seed, history), checkpoint)
        sealed = output.seal(training, signer, verify, snapshot, store.sets, provenance)
    guard = attempts.guard
    report = TrainingReport(
        **provenance._asdict(),
        started_at=started_at,
        finished_at=clock(),
        digest=sealed.digest,
        path=str(sealed.path),
        snapshot_digest=snapshot.digest,
        start_digest=start_digest,
        sets=list(store.sets),
        updates=training.learner.updates,
        recoveries=training.learner.history.recoveries,
        anomalies={kind.value: count for kind, count in sorted(guard.anomalies.items())},
        conservative_entries=guard.conservative_entries,
        episodes=training.episodes_seen,
        passes=training.mean_passes,
        metrics=training.final_metrics,
        curriculum=training.stages,
        curves_path=str(sealed.curves),
    )
    saved = save(report)
    output.remove()
    observer.end(report.digest, report.recoveries)
    return saved


def load_training_data(
    snapshot: SnapshotManifest, config: TrainConfig, blueprints: tuple[str, ...], cache: Path
) -> GraphDataset:
    """Load the training episodes; unusable snapshots are refused here."""
    path = Path(snapshot.path)
    if (found := read_manifest(path)).digest != snapshot.digest or found.files != snapshot.files:
        raise ContractError(f"{path} holds snapshot {found.digest}, the receipt names {snapshot.digest}")
    max_bytes = config.replay.max_mb * (1 << 20)
    store = GraphDataset.of_snapshot(found, blueprints=blueprints, max_bytes=max_bytes, cache=cache)
    if store.step_count < config.min_experiences:
        raise TrainingError(
            f"snapshot {snapshot.digest[:12]} holds {store.step_count} training steps, fewer than "
            f"train.min_experiences {config.min_experiences}: collect more episodes"
        )
    return store


def _decisive(
    config: TrainConfig, snapshot: SnapshotManifest, start_digest: str | None, seed: int, *, is_continuation: bool
) -> dict[str, Any]:
    """Return what decides the bits of a training, besides blueprints and code."""
    return {
        "config": config.model_dump(mode="json", exclude=dict(WITHOUT_EFFECT)),
        "snapshot": snapshot.digest,
        "start": start_digest,
        "is_continuation": is_continuation,
        "seed": seed,
        "torch": torch.__version__,
    }


class _Attempts:
    """Runs a training to its end, from the beginning, from a checkpoint, and again after a divergence."""

    def __init__(
        self,
        config: TrainConfig,
        checkpoints: Checkpoints,
        output: TrainingOutput,
        observer: TrainingObserver,
        on_progress: Callable[[int], None] | None,
    ) -> None:
        self._config, self._checkpoints, self._output, self._observer = config, checkpoints, output, observer
        self._on_progress, self._reported = on_progress, 0
        self._breakers = Breakers(config.safety.breakers)
        self._began_s, self._open_s = time.perf_counter(), 0.0
        """When the update in progress began, and for how long breakers had been open by then."""
        self._failed_at: int | None = None
        """The update that failed last; None once it was made."""
        self.guard = self._new_guard(0)
        """Guard of the attempt that is made, or was the last."""

    def run(self, begin: Callable[[History], TrainingRun], checkpoint: Checkpoint | None) -> TrainingRun:
        """Return the finished training."""
        recoveries = 0 if checkpoint is None else checkpoint.state.recoveries
        spent_s = 0.0 if checkpoint is None else checkpoint.state.elapsed_s
        limits = TrainingLimits(self._config.max_hours, self._config.max_memory_gb, spent_s)
        has_begun_again = is_short_of_memory = False
        while True:
            self.guard = self._new_guard(recoveries)
            history = History(None if checkpoint is None else checkpoint.content, recoveries, self.guard)
            training = begin(history)
            try:
                with self._output.open_curves(self._checkpoints, checkpoint) as curves, out_of_memory_typed("training"):
                    self._run(training, curves, limits, is_short_of_memory=is_short_of_memory)
            except ContractError as error:
                # Only a repetition can be at fault; a second begin would diverge and fail to repeat without end.
                if checkpoint is None or has_begun_again or history.done > history.covered:
                    raise
                _LOG.warning("training begins again: %s", error)
                checkpoint, recoveries, has_begun_again = None, 0, True
            except DivergenceError as error:
                if recoveries:
                    raise DivergenceError(f"training diverged again with halved learning rates: {error}") from error
                self._failed_at = history.done
                self._breakers.learner.failed(error)
                checkpoint, recoveries = self._checkpoints.recovered(), 1
                place = _place(checkpoint)
                _LOG.warning("training diverged and goes on from %s with halved learning rates: %s", place, error)
            except OutOfMemoryError as error:
                self._failed_at = history.done
                self._failed_for_memory(error)
                checkpoint, is_short_of_memory = self._checkpoints.newest(), True
                _LOG.warning("training goes on from %s in conservative mode: %s", _place(checkpoint), error)
            else:
                return training

    def _new_guard(self, recoveries: int) -> Guard:
        config = self._config
        return Guard(config.safety, config.clip_norm, config.batch_sequences, self._breakers, recoveries)

    def _failed_for_memory(self, error: OutOfMemoryError) -> None:
        """Count an update without memory; raise OutOfMemoryError if its breaker stays open."""
        try:
            self._breakers.learner.failed(error)
        except CircuitOpenError as last:
            raise OutOfMemoryError(str(last)) from error

    def _run(
        self, training: TrainingRun, curves: JsonLinesSink, limits: TrainingLimits, *, is_short_of_memory: bool
    ) -> None:
        planned, history = max(1, training.planned_updates), training.learner.history
        safety, timeout_s = self._config.safety, self._config.safety.update_timeout_s
        network, exploration = training.learner.network, self._config.network.exploration
        probe = PolicyProbe(training.store, network, safety.anomalies, exploration)
        limits.check()
        with Watchdog(timeout_s) as watchdog:
            self._prepare(history, probe, is_short_of_memory=is_short_of_memory)
            self._began_s = time.perf_counter()
            for record in training.run():
                if history.done > history.covered:
                    self._keep(training, record, probe, curves, limits)
                else:
                    self.guard.repeat(record.phase, record.number, history.recorded)
                self._prepare(history, probe, is_short_of_memory=is_short_of_memory)
                self._report(PROGRESS_TOTAL * history.done // planned)
                watchdog.reset(timeout_s * self.guard.allowance.timeout_factor)
                self._began_s = time.perf_counter()
        history.require_finite()
        self._report(PROGRESS_TOTAL)  # also of updates that were left out

    def _prepare(self, history: History, probe: PolicyProbe, *, is_short_of_memory: bool) -> None:
        """Prepare the next update, unless it is repeated."""
        if history.is_repeating:
            return
        if is_short_of_memory and history.done == history.covered:
            self.guard.become_conservative(Trigger.OUT_OF_MEMORY)
        probe.prepare(history.done + 1)

    def _keep(
        self, training: TrainingRun, record: Record, probe: PolicyProbe, curves: JsonLinesSink, limits: TrainingLimits
    ) -> None:
        """Judge and log an update that was made, check the limits, and write a checkpoint where one is due."""
        history, every, storage = training.learner.history, self._every(training), self._breakers.storage
        if self._failed_at is not None and history.done >= self._failed_at:
            self._breakers.learner.succeeded()
            self._failed_at = None
        has_pressure = limits.memory_share > self._config.safety.conservative.max_memory_share
        metrics = self.guard.observe(
            record.phase, record.number, record.metrics, probe.measure(), has_pressure=has_pressure
        )
        storage.call(lambda: curves.log(record.update, metrics))  # never left out: a resumed training repeats it
        self._observe(record, metrics)
        limits.check()
        if every and history.done % every == 0:
            self._write_checkpoint(history, limits)

    def _observe(self, record: Record, metrics: Mapping[str, float]) -> None:
        """Tell the observer of an update."""
        open_s = self._breakers.open_s
        time_ms, open_ms = 1000.0 * (time.perf_counter() - self._began_s), 1000.0 * (open_s - self._open_s)
        self._observer.update(Update(record.update, record.phase, metrics, time_ms, open_ms))
        self._open_s = open_s

    def _write_checkpoint(self, history: History, limits: TrainingLimits) -> None:
        """Write a checkpoint, or leave it out: then a killed training has to go back to the one before."""
        while True:
            try:
                self._checkpoints.write(history, limits.elapsed_s)
            except OSError as error:
                if not self._breakers.storage.failed(error):
                    return
            else:
                self._breakers.storage.succeeded()
                return

    def _every(self, training: TrainingRun) -> int:
        """Return the number of updates between checkpoints, 0 for none."""
        return self._config.checkpoint_updates if training.is_resumable else 0

    def _report(self, percent: int) -> None:
        percent = min(PROGRESS_TOTAL, percent)
        if self._on_progress is not None and percent > self._reported:
            self._on_progress(percent - self._reported)
            self._reported = percent


def _place(checkpoint: Checkpoint | None) -> str:
    return "the beginning" if checkpoint is None else f"checkpoint {checkpoint.path.name}"
