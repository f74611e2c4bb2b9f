"""Whether what a stored receipt speaks of still is as it was: a receipt proves nothing about the files by itself."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from simic.contracts.errors import IntegrityError
from simic.contracts.receipts import IngestReceipt, Receipt, SnapshotManifest, TrainingReport, ValidationReport
from simic.runtime import aside

if TYPE_CHECKING:
    from simic.app.policies import Policies
    from simic.runtime.settings import Home

__all__ = ["is_intact", "set_aside"]


def is_intact(receipt: Receipt, home: Home, policies: Policies) -> bool:
    """Digests of snapshots and policies are taken again; figures and parts need only be there."""
    try:
        match receipt:
            case SnapshotManifest():
                from simic.curation.snapshot import verify_snapshot

                return verify_snapshot(Path(receipt.path)).digest == receipt.digest
            case TrainingReport():
                return policies.check(Path(receipt.path), receipt.digest) == receipt.digest
            case ValidationReport():
                return all(Path(path).is_file() for path in receipt.figures.values())
            case IngestReceipt():
                return _has_landed(receipt.parts, home)
            case _:
                return True
    except IntegrityError:
        return False


def _has_landed(parts: Sequence[str], home: Home) -> bool:
    """A part that was merged or dropped since has landed all the same; one that was found damaged has not."""
    from simic.lake.lake import open_lake

    lake = open_lake(home)
    live = {part.part for part in lake.parts}
    return all(
        lake.store.size_bytes(part) is not None if part in live else part in lake.state.retired for part in parts
    )


def set_aside(receipt: Receipt) -> None:
    """Put the damaged files of a receipt where nobody takes them for whole."""
    if isinstance(receipt, SnapshotManifest | TrainingReport) and (path := Path(receipt.path)).is_dir():
        aside.set_aside(path)
