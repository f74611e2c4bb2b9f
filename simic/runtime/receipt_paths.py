"""Paths in receipts, stored relative to the home, so that a moved or copied home never refers to another one.

The location of an artifact follows from its digest: a snapshot lies in ``data/snapshots``, a policy in
``data/policies``, Karn in ``data/karn``. So a receipt on disk holds paths relative to the home. Receipts of earlier
versions, and results stored by Prefect, hold absolute paths of the home as it was then; these are replaced on reading.
"""

from __future__ import annotations

from pathlib import Path
from typing import TypeVar

from simic.contracts.results.gate import ValidationReport
from simic.contracts.results.karn import KarnReport
from simic.contracts.results.receipts import Receipt, SnapshotManifest, TrainingReport
from simic.contracts.results.run import RunReceipt
from simic.runtime.home import Home

__all__ = ["placed", "portable"]

R = TypeVar("R", bound=Receipt)


def placed(receipt: R, home: Home) -> R:
    """Return the receipt with absolute paths in ``home``; a path elsewhere is replaced by the one of its digest.

    Elsewhere are absolute paths below another root, and paths with ``..``: an edited receipt may hold any.
    """
    return _with_paths(receipt, home, "")


def portable(receipt: R, home: Home) -> R:
    """Return the receipt with paths relative to the root of ``home``; a path elsewhere is kept."""
    return _with_paths(receipt, home, str(home.root))


def _with_paths(receipt: R, home: Home, base: str) -> R:
    """Return the receipt with paths relative to ``base``, or absolute ones if it is empty."""

    def resolve(kept: str, place: Path) -> str:
        path = Path(kept)
        if base:
            return str(path.relative_to(base)) if path.is_relative_to(base) else kept
        if ".." in path.parts:
            return str(place)
        if not path.is_absolute():
            return str(home.root / path)
        return str(place if place.exists() or not path.is_relative_to(home.root) else path)

    changed: dict[str, object] = {}
    match receipt:
        case SnapshotManifest():
            changed["path"] = resolve(receipt.path, home.snapshot_folder(receipt.digest))
        case TrainingReport():
            changed["path"] = resolve(receipt.path, home.policies / receipt.digest)
            changed["curves_path"] = resolve(receipt.curves_path, home.curves / Path(receipt.curves_path).name)
        case KarnReport():
            changed["path"] = resolve(receipt.path, home.karn / receipt.digest)
        case ValidationReport():
            folder = home.run_folder(receipt.policy_digest) / "figures"
            changed["figures"] = {
                name: resolve(path, folder / Path(path).name) for name, path in receipt.figures.items()
            }
        case RunReceipt():
            changed["snapshots"] = [_with_paths(snapshot, home, base) for snapshot in receipt.snapshots]
            changed["trainings"] = [_with_paths(training, home, base) for training in receipt.trainings]
            changed["validation"] = _with_paths(receipt.validation, home, base)
        case _:
            return receipt
    return receipt.model_copy(update=changed)
