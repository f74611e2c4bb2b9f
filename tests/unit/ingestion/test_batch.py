"""What a batch counts."""

from __future__ import annotations

from datetime import UTC, datetime

from simic.bus.protocol import Line
from simic.ingestion.ingest import Batch
from simic.ingestion.validate import Accepted, Refused
from simic.lake.quarantine import Reason


def test_the_size_of_a_batch_is_that_of_what_it_holds() -> None:
    """A normal form may be longer than the line it came as: PD-5."""
    batch = Batch(datetime(2026, 1, 6, tzinfo=UTC))
    batch.add("file", Line(1, b"short", None), Accepted("a" * 32, "d" * 64, b"n" * 100))
    assert batch.size_bytes == 100
    batch.add("file", Line(2, b"broken", None), Refused(Reason.MALFORMED_JSON, "not JSON", None))
    assert batch.size_bytes == 106
