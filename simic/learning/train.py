"""From a snapshot to a sealed policy: the same snapshot, start and seed give the same digest."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from simic.contracts.config import TrainConfig
from simic.contracts.errors import ContractViolation, TrainingFailure
from simic.contracts.receipts import Provenance, SnapshotManifest, TrainingReport
from simic.hosts.catalogue import blueprint_names
from simic.learning.output import Workshop
from simic.learning.session import Session
from simic.learning.start import StartPoint
from simic.replay.manifest import read_manifest
from simic.replay.store import GraphStore
from simic.runtime.clock import Clock
from simic.runtime.telemetry import MetricSink, TeeSink
from simic.trust.keys import Signer

__all__ = ["train"]

COLUMNS_NAME = "columns"
"""Beside the policies: where the columns of snapshots larger than ``train.replay.max_mb`` are mapped from."""
PROGRESS_TOTAL = 100
"""``on_progress`` is told per cent."""


def train(
    snapshot: SnapshotManifest,
    config: TrainConfig,
    *,
    start: StartPoint | None,
    out_root: Path,
    signer: Signer,
    verify: Callable[[Path], str],
    sink: MetricSink,
    seed: int,
    provenance: Provenance,
    clock: Clock,
    on_progress: Callable[[int], None] | None,
) -> TrainingReport:
    """Learns from the training split of ``snapshot`` and seals the policy at ``out_root/<digest>``.

    ``verify`` returns the digest of a sealed policy or raises IntegrityError; none is read or kept before that.
    ``sink`` hears every update and changes nothing. ``on_progress`` is told in all 100, in steps of whole per cents.
    A snapshot larger than ``config.replay.max_mb`` is mapped from files beside ``out_root``.
    Raises TrainingFailure for too little experience, a loss that is not finite, or a policy that stops growing.
    """
    started_at = clock()
    store, set_name = _load(snapshot, config, out_root.parent / COLUMNS_NAME)
    start_digest = None if start is None else verify(start.path)
    is_continuation = start is not None and start.is_continuation
    workshop = Workshop(out_root, snapshot.digest, start_digest, seed, is_continuation=is_continuation)
    with _threads(config.threads):
        session = Session.begin(store, config, start, seed)
        with workshop.open_curves() as curves:
            _run(session, TeeSink(curves, sink), on_progress)
        sealed = workshop.seal(session, signer, verify, snapshot, set_name, provenance)
    return TrainingReport(
        **provenance._asdict(),
        started_at=started_at,
        finished_at=clock(),
        digest=sealed.digest,
        path=str(sealed.path),
        snapshot_digest=snapshot.digest,
        start_digest=start_digest,
        updates=session.learner.updates,
        episodes=session.episodes_seen,
        passes=session.mean_passes,
        metrics=session.final_metrics,
        curves_path=str(sealed.curves),
    )


def _load(snapshot: SnapshotManifest, config: TrainConfig, cache: Path) -> tuple[GraphStore, str]:
    """Episodes and the one world they come from; what cannot be trained on is refused here, before the work."""
    path = Path(snapshot.path)
    if (found := read_manifest(path)).digest != snapshot.digest or found.files != snapshot.files:
        raise ContractViolation(f"{path} holds snapshot {found.digest}, the receipt speaks of {snapshot.digest}")
    max_bytes = config.replay.max_mb * (1 << 20)
    store = GraphStore.load(path, blueprints=blueprint_names(), max_bytes=max_bytes, cache=cache)
    if store.step_count < config.min_experiences:
        raise TrainingFailure(
            f"snapshot {snapshot.digest[:12]} holds {store.step_count} training steps, fewer than "
            f"train.min_experiences {config.min_experiences}: collect more episodes"
        )
    return store, store.set_name


def _run(session: Session, sink: MetricSink, on_progress: Callable[[int], None] | None) -> None:
    planned, told = max(1, session.planned_updates), 0
    for done, record in enumerate(session.run(), start=1):
        sink.log(record.update, record.metrics)
        percent = min(PROGRESS_TOTAL, PROGRESS_TOTAL * done // planned)
        if on_progress is not None and percent > told:
            on_progress(percent - told)
        told = percent


@contextmanager
def _threads(count: int) -> Iterator[None]:
    """Torch's thread count, given back afterwards: results depend on it."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
