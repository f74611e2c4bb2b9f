"""Trainings of snapshots that end with a sealed policy."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from simic.contracts.results.receipts import Provenance, SnapshotManifest, TrainingReport
from simic.contracts.settings.training import TrainConfig
from simic.hosts.plugins import blueprint_names
from simic.learning.train import train
from simic.learning.training_run import WarmStart
from simic.trust.keys import Keyring, load_signer
from simic.trust.seal import verify

__all__ = ["NOW", "sealed"]

NOW = datetime(2026, 2, 1, tzinfo=UTC)


def sealed(
    root: Path, snapshot: SnapshotManifest, config: TrainConfig, start: WarmStart | None = None, **changes: Any
) -> TrainingReport:
    """Train with seed 0 and a key of ``root``, below which the policy lies; ``changes`` are arguments of ``train``."""
    arguments = {
        "blueprints": blueprint_names(),
        "out_root": root / "policies",
        "signer": load_signer(root / "keys", {}),
        "verify": lambda path: verify(path, Keyring(root / "keys")).digest,
        "seed": 0,
        "provenance": Provenance("test", "0" * 64, 0),
        "clock": lambda: NOW,
        "on_progress": None,
    }
    return train(snapshot, config, start=start, **{**arguments, **changes})
