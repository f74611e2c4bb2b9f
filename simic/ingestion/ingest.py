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

from simic.bus.protocol import Bus, Defect, Delivery, Line
from simic.bus.spans import SpanDigest
from simic.contracts.names import FIELD_REPORTS
from simic.contracts.results.receipts import IngestReceipt, Provenance
from simic.contracts.settings.run import IngestConfig
from simic.ingestion.validate import Accepted, Refused, Validator
from simic.lake.arrow_reader import AcceptedReports, ArrowReader, open_arrow_reader
from simic.lake.dedup import DedupIndex, FirstSeen, open_dedup_index
from simic.lake.lake import APPEND_TMP, LAKE_LOCK, Lake, open_lake
from simic.lake.parts import Part, ledger_digest, move_orphans_to_damaged
from simic.lake.quarantine import RAW_LIMIT_BYTES, Quarantine, QuarantineEntry, Reason
from simic.runtime.clock import Clock
from simic.runtime.home import Home
from simic.runtime.locks import exclusive
from simic.runtime.telemetry import MetricSink, NullSink

__all__ = ["Batch", "ingest"]


@dataclass
class Batch:
    """Validated lines of one or more deliveries that are committed together."""

    began_at: datetime
    """Time at which the batch was begun; the landing time of all its reports."""
    candidates: AcceptedReports = field(default_factory=AcceptedReports)
    """Valid reports."""
    refused: list[QuarantineEntry] = field(default_factory=list)
    finished: list[Delivery] = field(default_factory=list)
    """Deliveries whose last line is in this batch or an earlier one."""
    spans: dict[str, SpanDigest] = field(default_factory=dict)
    """Lines of the deliveries whose names may come again with other lines."""
    lines: int = 0
    size_bytes: int = 0
    """Size of the canonical forms, which may be longer than their lines, and of the refused lines."""

    def add(self, source: str, line: Line, result: Accepted | Refused) -> None:
        """Add a validated line."""
        self.lines += 1
        if isinstance(result, Accepted):
            self.size_bytes += len(result.data)
            sent = None if line.envelope is None else line.envelope.correlation_id
            self.candidates.add(*result, source, line.number, sent)
        else:
            self.size_bytes += len(line.data)
            self.refused.append(
                _entry(result.reason, result.message, source, line.number, result.report_id, line.data, self.began_at)
            )

    def deduplicate(self, seen: DedupIndex) -> tuple[AcceptedReports, int]:
        """Return the reports to land and the number of duplicates; repetitions are added to ``refused``.

        The first report of an id lands. Another with equal content is a duplicate, with other content a conflict. Both
        are recorded, unless source and line are those that landed, which is a redelivery after a crash.
        """
        candidates = self.candidates
        landed = seen.find(candidates.report_ids)
        if not landed and len(set(candidates.report_ids)) == len(candidates):
            return candidates, 0
        rows, duplicates = [], 0
        for row, report_id in enumerate(candidates.report_ids):
            here = FirstSeen(candidates.content_digests[row], candidates.sources[row], candidates.lines[row])
            first = landed.setdefault(report_id, here)
            if first is here:
                rows.append(row)
                continue
            is_equal = first.content_digest == here.content_digest
            duplicates += is_equal
            if not is_equal or (first.source, first.line) != (here.source, here.line):
                repetition = _repetition(report_id, candidates.data[row], here, first, is_equal, self.began_at)
                self.refused.append(repetition)
        return candidates.take(rows), duplicates

    def reasons(self) -> Counter[str]:
        """Return the number of refusals per reason, without duplicates."""
        return Counter(entry.reason.value for entry in self.refused if entry.reason is not Reason.DUPLICATE)


def _repetition(
    report_id: str, data: bytes, here: FirstSeen, first: FirstSeen, is_equal: bool, now: datetime
) -> QuarantineEntry:
    place = f"{first.source}, line {first.line}"
    if is_equal:
        reason, message = Reason.DUPLICATE, f"landed before from {place}"
    else:
        reason, message = Reason.CONFLICT, f"this id landed before with other content from {place}; that one stays"
    return _entry(reason, message, here.source, here.line, report_id, data, now)


def _entry(
    reason: Reason, message: str, source: str, line: int, report_id: str | None, raw: bytes, now: datetime
) -> QuarantineEntry:
    raw_digest = hashlib.sha256(raw).hexdigest()
    return QuarantineEntry(
        quarantine_id=hashlib.sha256(f"{source}\n{line}\n{raw_digest}".encode()).hexdigest(),
        reason=reason,
        message=message,
        source=source,
        line=line,
        report_id=report_id,
        size_bytes=len(raw),
        raw_sha256=raw_digest,
        raw=b"" if reason is Reason.DUPLICATE else raw[:RAW_LIMIT_BYTES],
        seen_at=now,
    )


_LOG = logging.getLogger(__name__)
_NO_SINK = NullSink()

_BATCH_LIMIT_BYTES = 64 * 1024 * 1024
"""A batch ends at this size even if it has fewer than ``batch_reports``, to bound the memory."""


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
    """Land every report that waits on the bus exactly once and acknowledge its deliveries.

    Args:
        bus: source of the deliveries.
        home: home of the lake.
        config: settings ``ingest``.
        known_blueprints: blueprints that reports may name.
        provenance: versions and digests for the receipt.
        clock: source of the landing time.
        sink: receives the counts after every batch, and those of the bus at the end.
        on_progress: called with 1 after each delivery.
        checkpoint: called with ``checked``, ``quarantined``, ``part-written``, ``part-renamed``, ``committed`` and
            ``acknowledged`` as each is reached.

    Raises:
        TransientError: while another process writes to the lake, or if the disk is full.
        IntegrityError: if the lake is damaged.
    """
    started_at = clock()
    validator = Validator(config, known_blueprints)
    with exclusive(home.locks / LAKE_LOCK, "ingest"):
        lake = open_lake(home)
        parts = lake.parts
        lake = lake.locate(started_at, provenance.code_version)
        _clean_up(lake)
        lake.check()
        tmp = home.tmp / APPEND_TMP
        with open_dedup_index(lake.seen_files(), tmp) as seen, open_arrow_reader(tmp) as columns:
            quarantine = Quarantine(home.quarantine, tmp, config.quarantine_mb * 1_000_000)
            writer = _Writer(bus, lake, seen, columns, quarantine, provenance, sink, checkpoint)
            newest = max([started_at, *(part.landed_at for part in parts)])
            batches = _Batches(validator, config, clock, newest, on_progress, checkpoint)
            for batch in batches.of(bus.claim(FIELD_REPORTS)):
                writer.commit(batch)
        counters = bus.counters(FIELD_REPORTS)
        bus_counts = {f"simic.bus.{name}": count for name, count in counters._asdict().items() if count is not None}
        sink.log(writer.batches, {**writer.metrics(), **bus_counts})
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


@dataclass
class _Batches:
    """Validates lines and gathers them into batches."""

    validator: Validator
    config: IngestConfig
    clock: Clock
    newest: datetime
    """Latest known time; with a clock that was set back, valid reports are not in the future."""
    on_progress: Callable[[int], None]
    checkpoint: Callable[[str], None]

    def of(self, deliveries: Iterable[Delivery]) -> Iterator[Batch]:
        """Yield batches; the caller commits each before asking for the next. A delivery may require its own batch."""
        batch = self._begin()
        for delivery in deliveries:
            if delivery.isolate and batch.lines:
                yield batch
                batch = self._begin()
            for line, result in self._checked(delivery):
                batch.add(delivery.source, line, result)
                if not delivery.has_own_name:
                    self._span(batch, delivery.source).add(line, is_accepted=isinstance(result, Accepted))
                if batch.lines >= self.config.batch_reports or batch.size_bytes >= _BATCH_LIMIT_BYTES:
                    self.checkpoint("checked")
                    yield batch
                    batch = self._begin()
            batch.finished.append(delivery)
            self.on_progress(1)
            if delivery.isolate:
                yield batch
                batch = self._begin()
        yield batch

    def _span(self, batch: Batch, source: str) -> SpanDigest:
        if source not in batch.spans:
            batch.spans[source] = SpanDigest(self.config.max_report_bytes)
        return batch.spans[source]

    def _begin(self) -> Batch:
        now = self.clock()
        self.newest = max(self.newest, now)
        self.validator.begin(now, self.newest)
        return Batch(now)

    def _checked(self, delivery: Delivery) -> Iterator[tuple[Line, Accepted | Refused]]:
        """Yield validated lines up to the last or until too many were refused, which bounds the time of garbage.

        A delivery that cannot be moved aside is read to its end; its transport bounds its size. A delivery with reports
        refused for their time of issue and none accepted is moved aside, because this machine's clock may be wrong.
        """
        refusals, most = 0, self.config.max_file_refusals
        accepted, untimely = 0, 0
        for line in delivery.open(self.config.max_report_bytes):
            result = self.validator.validate(line)
            yield line, result
            if isinstance(result, Refused):
                refusals += 1
                untimely += result.reason is Reason.ISSUED_AT
            else:
                accepted += 1
            if refusals > most and delivery.abandon is not None:
                delivery.abandon()
                text = (
                    f"expected at most {most} refused lines (ingest.max_file_refusals), found more; what follows line "
                    f"{line.number} was not read, and the file is set aside"
                )
                yield Line(0, b"", Defect.GIVEN_UP), Refused(Reason.GIVEN_UP, text, None)
                return
        if untimely and not accepted and delivery.abandon is not None:
            delivery.abandon()
            text = (
                "no report of %s landed: %d of %d lines were refused for their issued_at. The file is set aside as %s "
                "in the spool; if the clock of this machine was wrong, move it back to %s"
            )
            topic, source = delivery.topic, delivery.source
            _LOG.warning(text, source, untimely, refusals, f"{topic}/aside/{source}", f"{topic}/incoming")


def _clean_up(lake: Lake) -> None:
    """Remove unfinished files and move orphans of a killed run, which were neither committed nor acknowledged."""
    shutil.rmtree(lake.home.tmp / APPEND_TMP, ignore_errors=True)
    for name in move_orphans_to_damaged(lake.store, lake.state):
        _LOG.warning("set aside %s: a killed run wrote it and never committed it; its reports come again", name)


@dataclass
class _Writer:
    """Commits batches in order and counts reports."""

    bus: Bus
    lake: Lake
    seen: DedupIndex
    columns: ArrowReader
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
        """Commit a batch durably, then acknowledge the deliveries that it finished."""
        rows, duplicates = batch.deduplicate(self.seen)
        self.raw_dropped += self.quarantine.write(batch.refused)
        self.checkpoint("quarantined")
        if len(rows):
            self._land(rows, batch)
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
        """Return the counts of reports so far."""
        return {
            "simic.processor.reports_processed": self.read,
            "simic.processor.reports_failed": self.reasons.total(),
            "simic.processor.reports_landed": self.landed,
            "simic.processor.reports_duplicate": self.duplicates,
            "simic.processor.raw_dropped": self.raw_dropped,
        }

    def _land(self, rows: AcceptedReports, batch: Batch) -> None:
        table, sources = self.columns.table(rows, batch.began_at), set(rows.sources)
        part = self.lake.append(
            table, sources, batch.began_at, code_version=self.provenance.code_version,
            spans={name: digest.span() for name, digest in batch.spans.items() if name in sources},
            checkpoint=self.checkpoint,
        )  # fmt: skip
        self.parts.append(part)
        self.landed += part.rows
        self.seen.add([self.lake.ids_file(part)])
