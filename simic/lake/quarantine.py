"""The quarantine: refused reports with the reason, as Parquet files under ``data/quarantine``.

Entries are written at least once: a batch that is delivered again after a crash writes its entries again, under the
same name if it is the same batch and is refused for the same reasons. Readers keep one row per ``quarantine_id``: of
several reasons the one that was new last, with the time at which it was found first.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterator, Sequence
from enum import Enum
from pathlib import Path
from typing import Annotated

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]
from pydantic import Field

from simic.contracts.base import Contract, Count, Digest, UtcDatetime
from simic.lake.schema import arrow_schema
from simic.runtime.files import atomic_file, os_error_as_transient

__all__ = ["QUARANTINE_SCHEMA", "RAW_LIMIT_BYTES", "Quarantine", "QuarantineEntry", "Reason"]

RAW_LIMIT_BYTES = 16 * 1024
SUMMARIES_BYTES = 16_000_000
"""Size that the files may have beyond the budget, each with some entries that stand for a batch."""
_LOG = logging.getLogger(__name__)


class Reason(str, Enum):
    """Reason for which a report was refused."""

    MALFORMED_JSON = "malformed_json"
    """Not JSON; a truncated line looks like this, too."""
    TORN = "torn"
    """The compressed file ends in this line; `raw` has the readable part of it."""
    TOO_LONG = "too_long"
    """Longer than `ingest.max_report_bytes`; `raw` has its beginning."""
    UNREADABLE = "unreadable"
    """The file cannot be claimed or read; `message` says why and where it is now. Lines read before are kept."""
    GIVEN_UP = "given_up"
    """The file exceeds a limit of `ingest`, or changed while it was read; `message` says which and where it is now.
    Lines read before are kept."""
    TOO_DEEP = "too_deep"
    """Nested deeper than `ingest.max_depth`."""
    SCHEMA_VERSION = "schema_version"
    """Schema version that this code does not read."""
    UNKNOWN_FIELD = "unknown_field"
    """Has a field that is not in the contract."""
    DUPLICATE_KEY = "duplicate_key"
    """Has a field twice in one object, so readers could disagree about its value."""
    NON_FINITE = "non_finite"
    """Contains NaN or an infinity."""
    CONTRACT = "contract"
    """Violates another rule of the contract; `message` says which and where."""
    UNKNOWN_BLUEPRINT = "unknown_blueprint"
    """Names a blueprint that is neither installed nor declared in `ingest.declared_blueprints`."""
    CONTRADICTION = "contradiction"
    """Two fields of the report contradict each other; `message` says what was expected and what was found."""
    ISSUED_AT = "issued_at"
    """Issued further in the future than `ingest.max_future_s` or longer ago than `ingest.max_age_days`; it can be sent
    again."""
    CONFLICT = "conflict"
    """Id of a report that landed before with other content; the first one is kept."""
    DUPLICATE = "duplicate"
    """Same id and content as a report that landed before; nothing is lost."""


class QuarantineEntry(Contract):
    """A refused line of a delivery."""

    quarantine_id: Digest
    """SHA-256 of source, line and raw digest: the same on every redelivery."""
    reason: Reason
    message: Annotated[str, Field(max_length=1024)]
    """Explanation of the reason, with the position in the report."""
    source: str
    """Delivery of the line."""
    line: Count
    """Number of the line in the delivery, from 1; 0 for the delivery as a whole."""
    report_id: str | None
    """Id of the report, if it is readable."""
    size_bytes: Count
    """Size in bytes of the part that was read."""
    raw_sha256: Digest
    """SHA-256 of the part that was read."""
    raw: bytes
    """First 16 KiB of the line; empty for duplicates, and if the quarantine was full."""
    seen_at: UtcDatetime


QUARANTINE_SCHEMA = arrow_schema(QuarantineEntry)


class Quarantine:
    """Writer of refused lines into one directory, within a budget of bytes.

    Beyond the budget, entries lose their raw bytes. Once the files exceed it, one entry per reason and source stands
    for all lines of a batch: a few kB of compressed garbage can be millions of lines, and even tens of bytes for each
    would fill a disk. Once they exceed it by ``SUMMARIES_BYTES``, nothing more is written: only receipts count the
    lines.
    """

    def __init__(self, directory: Path, tmp: Path, budget_bytes: int) -> None:
        self._directory = directory
        self._tmp = tmp
        self._room_bytes = budget_bytes - sum(path.stat().st_size for path in directory.glob("refused-*.parquet"))

    def write(self, entries: Sequence[QuarantineEntry]) -> int:
        """Write entries durably into one file named by ids and reasons; return how many lost their raw bytes.

        An existing file of that name is kept: it has the same entries, seen earlier.
        """
        if not entries:
            return 0
        digest = hashlib.sha256("".join(map(_said, entries)).encode()).hexdigest()
        name = f"refused-{digest[:16]}.parquet"
        with os_error_as_transient(f"quarantine {name}"):
            if (self._directory / name).exists():
                return 0
            if self._room_bytes <= -SUMMARIES_BYTES:
                _LOG.error(
                    "%s is full, so %d refused lines are only counted: delete the files of it that are not needed, or "
                    "raise ingest.quarantine_mb", self._directory, len(entries),
                )  # fmt: skip
                return sum(bool(entry.raw) for entry in entries)
            kept = list(self._fitting(entries)) if self._room_bytes > 0 else _summarised(entries)
            with atomic_file(self._directory / name, tmp=self._tmp) as file:
                pq.write_table(_table(kept), file, compression="zstd", compression_level=3)
                self._room_bytes -= file.tell()
        return sum(bool(entry.raw) for entry in entries) - sum(bool(entry.raw) for entry in kept)

    def _fitting(self, entries: Sequence[QuarantineEntry]) -> Iterator[QuarantineEntry]:
        """Yield the entries, with raw bytes while they fit the budget uncompressed."""
        room_bytes = self._room_bytes
        for entry in entries:
            has_room = len(entry.raw) <= room_bytes
            room_bytes -= len(entry.raw) if has_room else 0
            yield entry if has_room else entry.model_copy(update={"raw": b""})


def _said(entry: QuarantineEntry) -> str:
    """Return id and reason of an entry, as they are when its batch comes again."""
    message = "" if entry.reason is Reason.ISSUED_AT else entry.message  # its bound moves with the clock
    return f"{entry.quarantine_id}\n{entry.reason.value}\n{message}\n"


def _summarised(entries: Sequence[QuarantineEntry]) -> list[QuarantineEntry]:
    """Return the first entry per reason and source, without raw bytes; its message has the number of lines."""
    alike: dict[tuple[Reason, str], list[QuarantineEntry]] = {}
    for entry in entries:
        alike.setdefault((entry.reason, entry.source), []).append(entry)
    return [
        first.model_copy(
            update={"raw": b"", "message": f"{len(group)} lines of the batch, the first: {first.message}"[:1024]}
        )
        for group in alike.values()
        for first in group[:1]
    ]


def _table(entries: Sequence[QuarantineEntry]) -> pa.Table:
    columns = [pa.array([getattr(entry, field.name) for entry in entries], field.type) for field in QUARANTINE_SCHEMA]
    return pa.Table.from_arrays(columns, schema=QUARANTINE_SCHEMA)
