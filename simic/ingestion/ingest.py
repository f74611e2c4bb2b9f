"""Bus to Parquet: at-least-once delivery, exactly-once effect.

The ledger line is the only commit point, and committed parts are all that readers and the deduplication see::

    lock > clear unfinished files and orphans > claim > check > drop repetitions > quarantine > part: write,
    fsync, rename, fsync > ledger line, fsync > acknowledge

    killed while ...              leaves behind          the next run
    ----------------------------  ---------------------  --------------------------------------------------
    writing, before the rename    an unfinished file     deletes it; the batch comes again
    between rename and ledger     an orphaned part       sets it aside; the batch comes again
    writing the ledger line       a torn line, a part    cuts it, sets the part aside; the batch comes again
    between ledger and ack        a delivery too many    drops every row as landed; acknowledges
    between quarantine and ack    a refusal too many     the view shows one: same source, line and bytes
"""

from __future__ import annotations

import hashlib
import logging
import shutil
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from datetime import datetime

from simic.bus.protocol import FIELD_REPORTS, Bus, Delivery, Line
from simic.contracts.config import IngestConfig
from simic.contracts.receipts import IngestReceipt, Provenance
from simic.ingestion.batch import Batch
from simic.ingestion.check import Accepted, Checker, Refused
from simic.lake.columns import ColumnReader, Landings, open_columns
from simic.lake.lake import LAKE_LOCK, Lake, open_lake
from simic.lake.parts import Part, ledger_digest, schema_digest, set_orphans_aside, write_part
from simic.lake.quarantine import Quarantine
from simic.lake.seen import SeenReports, open_seen
from simic.runtime.clock import Clock
from simic.runtime.locks import exclusive
from simic.runtime.settings import Home
from simic.runtime.telemetry import MetricSink, NullSink

__all__ = ["ingest"]

_LOG = logging.getLogger(__name__)
_TMP = "ingest"
"""Folder below the home's tmp that only the holder of the lock uses."""

_NO_SINK = NullSink()

_BATCH_LIMIT_BYTES = 64 * 1024 * 1024
"""A batch ends here even if it has fewer than ``batch_reports``, so that long reports do not fill the memory."""


def ingest(
    bus: Bus,
    home: Home,
    config: IngestConfig,
    known_blueprints: frozenset[str],
    *,
    provenance: Provenance,
    clock: Clock,
    sink: MetricSink = _NO_SINK,
    on_progress: Callable[[int], None] = lambda _deliveries: None,
    checkpoint: Callable[[str], None] = lambda _point: None,
) -> IngestReceipt:
    """Lands every report waiting on the bus exactly once and acknowledges what was delivered.

    One at a time per home: raises TransientError while another process ingests. ``sink`` gets the counts so far
    after every batch, and those of the bus at the end. ``on_progress`` hears how many deliveries were finished.
    ``checkpoint`` is called with the name of each point passed: ``checked``, ``quarantined``, ``part-written``,
    ``part-renamed``, ``committed``, ``acknowledged``.
    """
    started_at = clock()
    check = Checker(config, known_blueprints).check
    with exclusive(home.locks / LAKE_LOCK, "ingest"):
        lake = open_lake(home)
        parts = lake.parts
        lake = lake.locate(started_at, provenance.code_version)
        _clean_up(lake)
        lake.check()
        tmp = home.tmp / _TMP
        with open_seen(lake.seen_files(), tmp) as seen, open_columns(tmp) as columns:
            quarantine = Quarantine(home.quarantine, tmp, config.quarantine_mb * 1_000_000)
            writer = _Writer(bus, lake, seen, columns, quarantine, provenance, sink, checkpoint)
            for batch in _batches(bus.claim(FIELD_REPORTS), check, config, clock, on_progress, checkpoint):
                writer.commit(batch)
        counters = bus.counters(FIELD_REPORTS)
        told = {f"simic.bus.{name}": count for name, count in counters._asdict().items() if count is not None}
        sink.log(writer.batches, {**writer.metrics(), **told})
        return IngestReceipt(
            **provenance._asdict(),
            started_at=started_at,
            finished_at=clock(),
            read=writer.read,
            landed=writer.landed,
            duplicate=writer.duplicates,
            quarantined=writer.reasons.total(),
            retried=counters.retried,
            dead_lettered=counters.dead_lettered,
            lost=counters.lost,
            lag=counters.lag,
            reasons=dict(sorted(writer.reasons.items())),
            raw_dropped=writer.raw_dropped,
            parts=[part.part for part in writer.parts],
            ledger_digest=ledger_digest([*parts, *writer.parts]),
            ledger_rows=sum(part.rows for part in [*parts, *writer.parts]),
        )


def _batches(
    deliveries: Iterable[Delivery],
    check: Callable[[Line], Accepted | Refused],
    config: IngestConfig,
    clock: Clock,
    on_progress: Callable[[int], None],
    checkpoint: Callable[[str], None],
) -> Iterator[Batch]:
    """Checked lines; each batch is committed before the next is asked for. What stands alone has a batch of its own."""
    batch = Batch(clock())
    for delivery in deliveries:
        if delivery.alone and batch.lines:
            yield batch
            batch = Batch(clock())
        for line in delivery.open(config.max_report_bytes):
            batch.add(delivery.source, line, check(line))
            if batch.lines >= config.batch_reports or batch.size_bytes >= _BATCH_LIMIT_BYTES:
                checkpoint("checked")
                yield batch
                batch = Batch(clock())
        batch.finished.append(delivery)
        on_progress(1)
        if delivery.alone:
            yield batch
            batch = Batch(clock())
    yield batch


def _clean_up(lake: Lake) -> None:
    """Takes what a killed run left out of the way; nothing of it was committed or acknowledged."""
    shutil.rmtree(lake.home.tmp / _TMP, ignore_errors=True)
    for name in set_orphans_aside(lake.store, lake.state):
        _LOG.warning("set aside %s: a killed run wrote it and never committed it; its reports come again", name)


@dataclass
class _Writer:
    """Commits batches one after the other and counts."""

    bus: Bus
    lake: Lake
    seen: SeenReports
    columns: ColumnReader
    quarantine: Quarantine
    provenance: Provenance
    sink: MetricSink
    checkpoint: Callable[[str], None]
    batches: int = 0
    read: int = 0
    landed: int = 0
    duplicates: int = 0
    reasons: Counter[str] = field(default_factory=Counter)
    raw_dropped: int = 0
    parts: list[Part] = field(default_factory=list)

    def commit(self, batch: Batch) -> None:
        """Makes the batch's effect durable, then acknowledges the deliveries it finished."""
        rows, duplicates = batch.settle(self.seen)
        self.raw_dropped += self.quarantine.write(batch.refused)
        self.checkpoint("quarantined")
        if len(rows):
            self._land(rows, batch.began_at)
        self.checkpoint("committed")
        for delivery in batch.finished:
            self.bus.ack(delivery)
        self.checkpoint("acknowledged")
        self.read += batch.lines
        self.duplicates += duplicates
        self.reasons.update(batch.reasons())
        self.batches += 1
        self.sink.log(self.batches, self.metrics())

    def metrics(self) -> dict[str, float]:
        """Reports so far, by what became of them."""
        return {
            "simic.processor.reports_processed": self.read,
            "simic.processor.reports_failed": self.reasons.total(),
            "simic.processor.reports_landed": self.landed,
            "simic.processor.reports_duplicate": self.duplicates,
            "simic.processor.raw_dropped": self.raw_dropped,
        }

    def _land(self, rows: Landings, landed_at: datetime) -> None:
        table = self.columns.table(rows, landed_at)
        contents = hashlib.sha256("".join(rows.content_digests).encode()).hexdigest()
        written = write_part(
            table,
            store=self.lake.store,
            tmp=self.lake.home.tmp / _TMP,
            stem=f"{rows.report_ids[0]}-{contents[:16]}",
            landed_at=landed_at,
            checkpoint=self.checkpoint,
        )
        part = Part(
            part=written.name,
            rows=table.num_rows,
            size_bytes=written.size_bytes,
            sha256=written.sha256,
            sources=sorted(set(rows.sources)),
            schema_digest=schema_digest(table.schema),
            landed_at=landed_at,
            code_version=self.provenance.code_version,
        )
        self.lake.ledger.append(part.model_dump(mode="json"))
        self.parts.append(part)
        self.landed += part.rows
        self.seen.add([self.lake.ids_file(part)])
