"""Karn in a home: its training, and which one a policy consults."""

from __future__ import annotations

from simic.app.blueprint_vocabulary import vocabulary
from simic.app.container import Container
from simic.contracts.karn import KarnReport
from simic.contracts.receipts import SnapshotManifest
from simic.learning import train_karn as learning
from simic.runtime.locks import exclusive

__all__ = ["train"]


def train(container: Container, snapshot: SnapshotManifest) -> KarnReport:
    """Train Karn on a snapshot and keep the receipt; only one training of Karn runs at a time.

    Raises:
        TrainingError: for too few germinations to learn from.
    """
    with exclusive(container.home.locks / "karn", "training Karn"), container.progress.task("karn", 100) as advance:
        receipt = learning.train_karn(
            snapshot,
            container.config.karn,
            container.config.train,
            blueprints=vocabulary(container.config.ingest),
            out_root=container.home.karn,
            signer=container.signer,
            verify=container.policies.check,
            seed=container.seed,
            provenance=container.provenance,
            clock=container.clock,
            on_progress=advance,
        )
    return container.save_receipt(receipt)
