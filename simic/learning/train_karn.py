"""Train Karn from a snapshot and seal it; equal snapshot, settings and seed give an equal digest."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from functools import reduce
from pathlib import Path

import torch

from simic.contracts.results.karn import KarnReport
from simic.contracts.results.receipts import Provenance, SnapshotManifest
from simic.contracts.settings.karn import KarnConfig
from simic.contracts.settings.training import TrainConfig
from simic.controllers.feature_ranges import joined_ranges, ranges_of
from simic.controllers.karn import describe_karn, save_karn
from simic.learning.attempts import PROGRESS_TOTAL
from simic.learning.devices import pinned_numerics
from simic.learning.karn import KarnTraining
from simic.learning.limits import TrainingLimits
from simic.learning.output import publish_sealed
from simic.learning.train import COLUMNS_NAME, load_training_data
from simic.replay.dataset import GraphDataset
from simic.runtime.clock import Clock
from simic.trust.keys import Signer
from simic.trust.seal import seal

__all__ = ["train_karn"]


def train_karn(
    snapshot: SnapshotManifest,
    config: KarnConfig,
    train: TrainConfig,
    *,
    blueprints: tuple[str, ...],
    out_root: Path,
    signer: Signer,
    verify: Callable[[Path], str],
    seed: int,
    provenance: Provenance,
    clock: Clock,
    on_progress: Callable[[int], None],
) -> KarnReport:
    """Train on the training split of ``snapshot`` and seal the result at ``out_root/<digest>``.

    Args:
        train: learning rates, limits, and the exploration with which policies act.
        blueprints: those that Karn is to know; the rows name no others.
        verify: returns the digest of a sealed directory or raises IntegrityError.
        on_progress: called with increments in per cent that sum to 100.

    Raises:
        TrainingError: for too little experience.
        DivergenceError: for a loss, gradient or weight that is not finite.
        ResourceLimitError: beyond ``train.max_hours`` or ``train.max_memory_gb``, or without memory for an update.
        CircuitOpenError: if batches cannot be read, after the pause of ``train.safety.breakers.sampling``.
        IntegrityError: if the snapshot is damaged.
        ContractError: if rows do not fit.
    """
    started_at = clock()
    store = load_training_data(snapshot, train, blueprints, out_root.parent / COLUMNS_NAME)
    limits, shown = TrainingLimits(train.max_hours, train.max_memory_gb, 0.0), 0
    with pinned_numerics(train, torch.device("cpu")):
        training = KarnTraining(store, config, train, seed)
        for record in training.run():
            limits.check()
            done = PROGRESS_TOTAL * record.update // training.updates
            on_progress(done - shown)
            shown = done
        training.require_finite()
    digest = _seal(training, store, snapshot, out_root, signer, verify, provenance)
    return KarnReport(
        **provenance._asdict(),
        started_at=started_at,
        finished_at=clock(),
        digest=digest,
        path=str(out_root / digest),
        snapshot_digest=snapshot.digest,
        sets=list(store.sets),
        comparisons=len(training.examples.compared.rows),
        germinations=len(training.examples.germinated.rows),
        undrawn=training.examples.undrawn,
        updates=training.updates,
        metrics=training.metrics,
    )


def _seal(
    training: KarnTraining,
    store: GraphDataset,
    snapshot: SnapshotManifest,
    out_root: Path,
    signer: Signer,
    verify: Callable[[Path], str],
    provenance: Provenance,
) -> str:
    """Seal the trained network and return its digest."""
    folder = out_root / f".train-{snapshot.digest[:12]}-{provenance.seed}"
    card = describe_karn(
        training.network,
        set_name="+".join(store.sets),
        snapshot_digest=snapshot.digest,
        code_version=provenance.code_version,
        config_digest=provenance.config_digest,
        germinated=store.germinated,
        feature_ranges=reduce(joined_ranges, (ranges_of(graphs, store.blueprints) for graphs in store.graphs())),
    )
    shutil.rmtree(folder, ignore_errors=True)  # what a kill left
    save_karn(folder, training.network, card)
    digest = seal(folder, signer).digest
    publish_sealed(folder, out_root, digest, verify)
    shutil.rmtree(folder, ignore_errors=True)
    return digest
