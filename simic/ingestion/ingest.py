"""Bus to Parquet: at-least-once delivery, exactly-once effect.

The ledger line is the only commit point, and committed parts are all that readers and the deduplication see::

    lock > delete unfinished files and orphans > claim > check > drop repetitions > quarantine > part: write,
    fsync, rename, fsync > ledger line, fsync > acknowledge

    killed while ...              leaves behind          the next run
    ----------------------------  ---------------------  --------------------------------------------------
    writing, before the rename    an unfinished file     deletes it; the batch comes again
    between rename and ledger     an orphaned part       deletes it; the batch comes again
    writing the ledger line       a torn line, a part    ignores and cuts it, deletes the part; comes again
    between ledger and ack        a delivery too many    drops every row as landed; acknowledges
    between quarantine and ack    a refusal too many     the view shows one: same source, line and bytes
"""

from __future__ import annotations

import hashlib
import logging
import shutil
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial

from simic.bus.protocol import FIELD_REPORTS, Bus
from simic.contracts.config import IngestConfig
from simic.contracts.receipts import IngestReceipt, Provenance
from simic.ingestion.batch import Batch
from simic.ingestion.check import check_line
from simic.lake.columns import Landing, landed_table
from simic.lake.ledger import Ledger
from simic.lake.parts import (
    PARTS_LEDGER,
    Part,
    check_parts,
    committed_parts,
    delete_orphans,
    file_digest,
    ledger_digest,
    schema_digest,
    write_part,
)
from simic.lake.quarantine import write_quarantine
from simic.lake.seen import SeenReports, open_seen
from simic.runtime.clock import Clock
from simic.runtime.locks import exclusive
from simic.runtime.settings import Home

__all__ = ["ingest"]

_LOG = logging.getLogger(__name__)
_TMP = "ingest"
"""Folder below the home's tmp that only the holder of the lock uses."""

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
    on_progress: Callable[[int], None] = lambda _deliveries: None,
    checkpoint: Callable[[str], None] = lambda _point: None,
) -> IngestReceipt:
    """Lands every report waiting on the bus exactly once and acknowledges what was delivered.

    One at a time per home: raises TransientError while another process ingests. ``on_progress`` hears how many
    deliveries were finished. ``checkpoint`` is called with the name of each point passed: ``checked``,
    ``quarantined``, ``part-written``, ``part-renamed``, ``committed``, ``acknowledged``.
    """
    started_at = clock()
    check = partial(check_line, config=config, known_blueprints=known_blueprints)
    with exclusive(home.locks / "ingest", "ingest"):
        ledger = Ledger(home.ledger / PARTS_LEDGER)
        parts = committed_parts(ledger)
        _clean_up(home, parts)
        with open_seen(check_parts(home.experience, parts, home.data), home.tmp / _TMP) as seen:
            writer = _Writer(bus, home, ledger, seen, provenance, checkpoint)
            batch = Batch(clock())
            for delivery in bus.claim(FIELD_REPORTS):
                for line in delivery.open(config.max_report_bytes):
                    batch.add(delivery.source, line, check(line))
                    if batch.lines >= config.batch_reports or batch.size_bytes >= _BATCH_LIMIT_BYTES:
                        checkpoint("checked")
                        writer.commit(batch)
                        batch = Batch(clock())
                batch.finished.append(delivery)
                on_progress(1)
            writer.commit(batch)
        return IngestReceipt(
            **provenance._asdict(),
            started_at=started_at,
            finished_at=clock(),
            read=writer.read,
            landed=sum(part.rows for part in writer.parts),
            duplicate=writer.duplicates,
            quarantined=writer.reasons.total(),
            reasons=dict(sorted(writer.reasons.items())),
            parts=[part.part for part in writer.parts],
            ledger_digest=ledger_digest([*parts, *writer.parts]),
            ledger_rows=sum(part.rows for part in [*parts, *writer.parts]),
        )


def _clean_up(home: Home, parts: Sequence[Part]) -> None:
    """Removes what a killed run left behind; nothing of it was committed or acknowledged."""
    shutil.rmtree(home.tmp / _TMP, ignore_errors=True)
    for name in delete_orphans(home.experience, parts):
        _LOG.warning("deleted %s: a killed run wrote it and never committed it; its reports come again", name)


@dataclass
class _Writer:
    """Commits batches one after the other and counts."""

    bus: Bus
    home: Home
    ledger: Ledger
    seen: SeenReports
    provenance: Provenance
    checkpoint: Callable[[str], None]
    read: int = 0
    duplicates: int = 0
    reasons: Counter[str] = field(default_factory=Counter)
    parts: list[Part] = field(default_factory=list)

    def commit(self, batch: Batch) -> None:
        """Makes the batch's effect durable, then acknowledges the deliveries it finished."""
        rows, duplicates = batch.settle(self.seen)
        write_quarantine(batch.refused, directory=self.home.quarantine, tmp=self.home.tmp / _TMP)
        self.checkpoint("quarantined")
        if rows:
            self._land(rows, batch.began_at)
        self.checkpoint("committed")
        for delivery in batch.finished:
            self.bus.ack(delivery)
        self.checkpoint("acknowledged")
        self.read += batch.lines
        self.duplicates += duplicates
        self.reasons.update(batch.reasons())

    def _land(self, rows: list[Landing], landed_at: datetime) -> None:
        table = landed_table(rows, landed_at)
        contents = hashlib.sha256("".join(row.content_digest for row in rows).encode()).hexdigest()
        path = write_part(
            table,
            experience=self.home.experience,
            tmp=self.home.tmp / _TMP,
            stem=f"{table.column('report_id')[0].as_py()}-{contents[:16]}",
            landed_at=landed_at,
            checkpoint=self.checkpoint,
        )
        part = Part(
            part=path.relative_to(self.home.experience).as_posix(),
            rows=table.num_rows,
            size_bytes=path.stat().st_size,
            sha256=file_digest(path),
            sources=sorted({row.source for row in rows}),
            schema_digest=schema_digest(table.schema),
            landed_at=landed_at,
            code_version=self.provenance.code_version,
        )
        self.ledger.append(part.model_dump(mode="json"))
        self.parts.append(part)
        self.seen.add([path])
