"""Train a policy from a snapshot and seal it; equal snapshot, start and seed give an equal digest."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import torch

from simic.contracts.config import TrainConfig
from simic.contracts.errors import ContractError, IntegrityError, TrainingError
from simic.contracts.receipts import Provenance, SnapshotManifest, TrainingReport
from simic.controllers.policy_files import describe, save_policy
from simic.learning.checkpoint import write_state
from simic.learning.training_run import TrainingRun, WarmStart
from simic.replay.dataset import GraphDataset
from simic.runtime.clock import Clock
from simic.runtime.files import move_to_damaged
from simic.runtime.telemetry import JsonLinesSink, MetricSink, TeeSink
from simic.snapshots.manifest import read_manifest
from simic.trust.keys import Signer
from simic.trust.seal import seal

__all__ = ["SealedPolicy", "TrainingOutput", "train"]

_LOG = logging.getLogger(__name__)
CURVES_FOLDER = "curves"
"""Folder beside the policies: curves are not part of a policy's digest."""


class SealedPolicy(NamedTuple):
    """Path and digest of a sealed policy, and the path of its curves."""

    path: Path
    digest: str
    curves: Path


class TrainingOutput:
    """The working folder of one training run; a killed run leaves it, and the same run clears it."""

    def __init__(
        self, out_root: Path, snapshot_digest: str, start_digest: str | None, seed: int, *, is_continuation: bool
    ) -> None:
        self._root = out_root
        self._previous = start_digest if is_continuation else None
        name = f".train-{snapshot_digest[:12]}-{(start_digest or 'fresh')[:12]}-{seed}"
        self._folder = out_root / name
        self._curves = self._folder / "curves.jsonl"

    def open_curves(self) -> JsonLinesSink:
        """Open a new file of curves; that of a later round begins with the curves of earlier rounds, if they exist."""
        shutil.rmtree(self._folder, ignore_errors=True)
        self._folder.mkdir(parents=True)
        if self._previous is not None and (earlier := self._curves_of(self._previous)).is_file():
            shutil.copyfile(earlier, self._curves)
        return JsonLinesSink(self._curves)

    def seal(
        self,
        training: TrainingRun,
        signer: Signer,
        verify: Callable[[Path], str],
        snapshot: SnapshotManifest,
        sets: Sequence[str],
        provenance: Provenance,
    ) -> SealedPolicy:
        """Seal the policy at ``<root>/<digest>``; an intact one that exists already stays, as it has the same bytes."""
        network, folder = training.policy(), self._folder / "policy"
        card = describe(
            network.eval(),
            training.config.network,
            set_name="+".join(sets),
            snapshot_digest=snapshot.digest,
            code_version=provenance.code_version,
            config_digest=provenance.config_digest,
            germinated=training.germinated,
        )
        save_policy(folder, network, card)
        write_state(folder, training.state(snapshot.digest), training.learner.network, training.learner.optimizer)
        digest = seal(folder, signer).digest
        target, curves = self._root / digest, self._curves_of(digest)
        curves.parent.mkdir(parents=True, exist_ok=True)
        self._curves.replace(curves)
        if target.exists() and not _is_whole(target, digest, verify):
            _LOG.warning("policy %s was damaged and is set aside as %s", target, move_to_damaged(target))
        if not target.exists():
            folder.rename(target)
        shutil.rmtree(self._folder, ignore_errors=True)
        return SealedPolicy(target, digest, curves)

    def _curves_of(self, digest: str) -> Path:
        return self._root.with_name(CURVES_FOLDER) / f"{digest}.jsonl"


def _is_whole(path: Path, digest: str, verify: Callable[[Path], str]) -> bool:
    try:
        return verify(path) == digest
    except IntegrityError:
        return False


COLUMNS_NAME = "columns"
"""Folder beside the policies with the mapped columns of snapshots larger than ``train.replay.max_mb``."""
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
    sink: MetricSink,
    seed: int,
    provenance: Provenance,
    clock: Clock,
    on_progress: Callable[[int], None] | None,
) -> TrainingReport:
    """Train on the training split of ``snapshot`` and seal the policy at ``out_root/<digest>``.

    A snapshot larger than ``config.replay.max_mb`` is mapped from files beside ``out_root``.

    Args:
        blueprints: those that the policy is to know; the rows name no others.
        verify: returns the digest of a sealed policy or raises IntegrityError; called before a policy is read or kept.
        sink: receives the metrics of every update.
        on_progress: called with increments in per cent that sum to at most 100.

    Raises:
        TrainingError: for too little experience, a loss that is not finite, or a policy that stops growing.
        IntegrityError: if snapshot or start policy are damaged.
        ContractError: if rows or start policy do not fit.
    """
    started_at = clock()
    store = _load(snapshot, config, blueprints, out_root.parent / COLUMNS_NAME)
    start_digest = None if start is None else verify(start.path)
    is_continuation = start is not None and start.is_continuation
    output = TrainingOutput(out_root, snapshot.digest, start_digest, seed, is_continuation=is_continuation)
    with _threads(config.threads):
        training = TrainingRun.begin(store, config, start, seed)
        with output.open_curves() as curves:
            _run(training, TeeSink(curves, sink), on_progress)
        sealed = output.seal(training, signer, verify, snapshot, store.sets, provenance)
    return TrainingReport(
        **provenance._asdict(),
        started_at=started_at,
        finished_at=clock(),
        digest=sealed.digest,
        path=str(sealed.path),
        snapshot_digest=snapshot.digest,
        start_digest=start_digest,
        sets=list(store.sets),
        updates=training.learner.updates,
        episodes=training.episodes_seen,
        passes=training.mean_passes,
        metrics=training.final_metrics,
        curves_path=str(sealed.curves),
    )


def _load(snapshot: SnapshotManifest, config: TrainConfig, blueprints: tuple[str, ...], cache: Path) -> GraphDataset:
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


def _run(training: TrainingRun, sink: MetricSink, on_progress: Callable[[int], None] | None) -> None:
    planned, reported = max(1, training.planned_updates), 0
    for done, record in enumerate(training.run(), start=1):
        sink.log(record.update, record.metrics)
        percent = min(PROGRESS_TOTAL, PROGRESS_TOTAL * done // planned)
        if on_progress is not None and percent > reported:
            on_progress(percent - reported)
        reported = percent
    if on_progress is not None and reported < PROGRESS_TOTAL:  # updates that were left out
        on_progress(PROGRESS_TOTAL - reported)


@contextmanager
def _threads(count: int) -> Iterator[None]:
    """Set torch's thread count, on which results depend, and restore it afterwards."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
