"""A home with reports in it, through the real bus, the real lake and the real SQL."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from simic.bus.factory import BusSpec, open_bus
from simic.bus.spool.bus import SpoolBus
from simic.contracts.field_report import FieldReport
from simic.contracts.results.receipts import IngestReceipt, Provenance, SnapshotManifest
from simic.contracts.settings.run import CurateConfig, IngestConfig
from simic.curation.run import curate
from simic.ingestion.ingest import ingest
from simic.runtime.home import Home
from support.builders.reports import BLUEPRINTS, line

__all__ = ["NOW", "PROVENANCE", "TOPIC", "FixedClock", "curate_all", "drop", "ingest_all", "land"]

NOW = datetime(2026, 1, 6, 8, 30, tzinfo=UTC)
PROVENANCE = Provenance("0.1.0+test", "c" * 64, 7)
TOPIC = "tamiyo.field_reports"


class FixedClock:
    """Starts at ``NOW`` and moves on by a second with each look."""

    def __init__(self, start: datetime = NOW) -> None:
        self._next = start

    def __call__(self) -> datetime:
        moment, self._next = self._next, self._next + timedelta(seconds=1)
        return moment


def drop(home: Home, name: str, rows: Iterable[FieldReport | Mapping[str, Any] | bytes]) -> Path:
    """A plain file in the spool, as a person would put it there."""
    path = home.spool / TOPIC / "incoming" / f"{name}.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"".join((row if isinstance(row, bytes) else line(row)) + b"\n" for row in rows))
    return path


def ingest_all(home: Home, *, clock: Any = None, **settings: Any) -> IngestReceipt:
    """Lands what waits."""
    config = IngestConfig(**settings)
    return ingest(
        open_bus(BusSpec(home.spool, ingest=config)),
        home,
        config,
        frozenset(BLUEPRINTS),
        provenance=PROVENANCE,
        clock=clock or FixedClock(),
    )


def land(home: Home, reports: Iterable[FieldReport], name: str = "reports", **settings: Any) -> IngestReceipt:
    """Puts reports on the bus and lands them."""
    SpoolBus(home.spool).put(TOPIC, name, map(line, reports))
    return ingest_all(home, **settings)


def curate_all(home: Home, *, horizon: int = 20, clock: Any = None, **settings: Any) -> SnapshotManifest:
    """Seals a snapshot of everything landed."""
    return curate(home, CurateConfig(**settings), horizon, provenance=PROVENANCE, clock=clock or FixedClock())
