"""Train a policy from a snapshot and seal it; equal snapshot, start and seed give an equal digest.

A training that was killed goes on from its newest checkpoint, with the same bits (``history``); ``attempts`` says what
follows a failure.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from simic.contracts.errors import ContractError, TrainingError
from simic.contracts.results.receipts import Provenance, SnapshotManifest, TrainingReport
from simic.contracts.settings.training import WITHOUT_EFFECT, TrainConfig
from simic.learning.attempts import Attempts
from simic.learning.devices import choose_device, pinned_numerics, place_on
from simic.learning.output import TrainingOutput
from simic.learning.training_run import TrainingRun, WarmStart
from simic.replay.dataset import GraphDataset
from simic.runtime.clock import Clock
from simic.runtime.telemetry import NullObserver, TrainingObserver
from simic.snapshots.manifest import read_manifest
from simic.trust.canonical import digest_of
from simic.trust.keys import Signer

__all__ = ["COLUMNS_NAME", "load_training_data", "train"]

_LOG = logging.getLogger(__name__)
COLUMNS_NAME = "columns"
"""Folder beside the policies with the mapped columns of snapshots larger than ``train.replay.max_mb``."""
_NO_OBSERVER = NullObserver()


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

    A snapshot larger than ``config.replay.max_mb`` is mapped from files beside ``out_root``. A training that is
    hopeless by ``config.safety.hopeless`` ends early: its policy is sealed as it is then, and ``stopped`` of the report
    says why.

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
    store = place_on(load_training_data(snapshot, config, blueprints, out_root.parent / COLUMNS_NAME), device)
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
    attempts = Attempts(config, checkpoints, output, observer, on_progress)
    with pinned_numerics(config, device):
        training = attempts.run(lambda history: TrainingRun.begin(store, config, start, seed, history), checkpoint)
        sealed = output.seal(training, signer, verify, snapshot, store.sets, provenance)
    report = TrainingReport(
        **provenance._asdict(),
        **_results(training, attempts),
        started_at=started_at,
        finished_at=clock(),
        digest=sealed.digest,
        path=str(sealed.path),
        snapshot_digest=snapshot.digest,
        start_digest=start_digest,
        sets=list(store.sets),
        curves_path=str(sealed.curves),
    )
    saved = save(report)
    output.remove()
    observer.end(report.digest, report.recoveries, None if report.stopped is None else report.stopped.cause.value)
    return saved


def _results(training: TrainingRun, attempts: Attempts) -> dict[str, Any]:
    """Return the fields of a report that say what was learned, and what happened on the way."""
    guard = attempts.guard
    return {
        "updates": training.learner.updates,
        "recoveries": guard.recoveries,
        "anomalies": {kind.value: count for kind, count in sorted(guard.anomalies.items())},
        "conservative_entries": guard.conservative_entries,
        "episodes": training.episodes_seen,
        "passes": training.mean_passes,
        "metrics": training.final_metrics,
        "curriculum": training.stages,
        "stopped": attempts.stopped,
    }


def load_training_data(
    snapshot: SnapshotManifest, config: TrainConfig, blueprints: tuple[str, ...], cache: Path
) -> GraphDataset:
    """Load the training episodes; unusable snapshots are refused here."""
    path = Path(snapshot.path)
    if (manifest := read_manifest(path)).digest != snapshot.digest or manifest.files != snapshot.files:
        raise ContractError(f"{path} holds snapshot {manifest.digest}, the receipt names {snapshot.digest}")
    max_bytes = config.replay.max_mb * (1 << 20)
    store = GraphDataset.of_snapshot(manifest, blueprints=blueprints, max_bytes=max_bytes, cache=cache)
    if store.step_count < config.min_experiences:
        raise TrainingError(
            f"snapshot {snapshot.digest[:12]} holds {store.step_count} training steps, fewer than "
            f"train.min_experiences {config.min_experiences}: collect more episodes"
        )
    return store


def _decisive(
    config: TrainConfig, snapshot: SnapshotManifest, start_digest: str | None, seed: int, *, is_continuation: bool
) -> dict[str, Any]:
    """Return what decides the bits of a training, besides blueprints and code.

    How many trainings a run makes of one snapshot (``seeds``) decides nothing in any of them.
    """
    return {
        "config": config.model_dump(mode="json", exclude={**WITHOUT_EFFECT, "seeds": True}),
        "snapshot": snapshot.digest,
        "start": start_digest,
        "is_continuation": is_continuation,
        "seed": seed,
        "torch": torch.__version__,
    }
