"""The receipt of a run: those of its stages."""

from __future__ import annotations

from typing import Literal

from simic.contracts.base import Digest, Text
from simic.contracts.results.gate import GateDecision, ValidationReport
from simic.contracts.results.receipts import (
    CollectionReceipt,
    IngestReceipt,
    PolicyVersion,
    PublicationReceipt,
    Receipt,
    SnapshotManifest,
    TrainingReport,
)
from simic.contracts.results.trials import SeedChoice

__all__ = ["RunReceipt"]


class RunReceipt(Receipt):
    """Receipts of all stages of a run, in their order."""

    stage: Literal["run"] = "run"
    token: Text
    """Name of the run; a resumed run keeps it."""
    profile: Text
    is_resumed: bool
    start_digest: Digest | None
    """Digest of the champion from which the run started, if any."""
    collections: list[CollectionReceipt]
    ingests: list[IngestReceipt]
    snapshots: list[SnapshotManifest]
    trainings: list[TrainingReport]
    choice: SeedChoice | None = None
    """Which of the last trainings is judged; null if there is one."""
    validation: ValidationReport
    decision: GateDecision
    version: PolicyVersion | None
    """Null if the gate rejected the candidate."""
    publication: PublicationReceipt | None
