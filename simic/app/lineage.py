"""What a receipt stands for, apart from when it was made."""

from __future__ import annotations

import hashlib

from simic.contracts.receipts import (
    CollectionReceipt,
    GateDecision,
    IngestReceipt,
    PolicyVersion,
    PublicationReceipt,
    Receipt,
    SnapshotManifest,
    TrainingReport,
    TrialReport,
    ValidationReport,
)

__all__ = ["content_of"]

WHEN = {"started_at", "finished_at"}


def content_of(receipt: Receipt) -> str:
    """A digest that two receipts of equal content share, however often the stage ran."""
    match receipt:
        case SnapshotManifest() | TrainingReport() | GateDecision() | PolicyVersion():
            return receipt.digest
        case CollectionReceipt():
            return receipt.reports_digest
        case IngestReceipt():
            return receipt.ledger_digest
        case PublicationReceipt():
            return _digest(receipt.event_id)
        case TrialReport():
            return _digest(receipt.model_dump_json(exclude=WHEN))
        case ValidationReport():
            return _digest(receipt.model_dump_json(exclude=WHEN | {"trials", "figures"}) + content_of(receipt.trials))
        case _:
            return _digest(receipt.model_dump_json(exclude=WHEN))


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
