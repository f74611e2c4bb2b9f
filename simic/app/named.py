"""Receipts that a person names: by a file, by a sealed directory, or as the newest of their kind."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from simic.contracts.receipts import SnapshotManifest, TrainingReport, ValidationReport

if TYPE_CHECKING:
    from simic.app.policies import Policies
    from simic.app.shelf import Shelf

__all__ = ["snapshot_at", "training_at", "validation_at"]


def snapshot_at(shelf: Shelf, path: Path | None) -> SnapshotManifest:
    """By snapshot directory or receipt; else the newest."""
    if path is None:
        return shelf.newest(SnapshotManifest, "run `simic curate` first")
    if path.is_dir():
        from simic.curation.snapshot import verify_snapshot

        return verify_snapshot(path)
    return shelf.read(SnapshotManifest, path)


def training_at(shelf: Shelf, policies: Policies, path: Path | None) -> TrainingReport:
    """By sealed policy directory or receipt; else the newest."""
    if path is None:
        return shelf.newest(TrainingReport, "run `simic train` first")
    if path.is_dir():
        digest = policies.check(path)
        return shelf.find(TrainingReport, lambda found: found.digest == digest, f"{path} was not trained in this home")
    return shelf.read(TrainingReport, path)


def validation_at(shelf: Shelf, path: Path | None) -> ValidationReport:
    """By receipt; else the newest."""
    if path is None:
        return shelf.newest(ValidationReport, "run `simic validate` first")
    return shelf.read(ValidationReport, path)
