"""Reports that did not become experience, kept with the reason.

Parquet files under ``data/quarantine``, at least once: a batch delivered again after a crash writes its refusals again,
under the same name if it is the same batch. Readers keep one row per ``quarantine_id``.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Sequence
from enum import Enum
from pathlib import Path
from typing import Annotated

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]
from pydantic import Field

from simic.contracts.base import Contract, Count, Digest, UtcDatetime
from simic.contracts.errors import TransientError
from simic.lake.schema import arrow_schema
from simic.runtime.durable import sync_folder

__all__ = ["QUARANTINE_SCHEMA", "RAW_LIMIT_BYTES", "Quarantine", "QuarantineEntry", "Reason"]

RAW_LIMIT_BYTES = 16 * 1024


class Reason(str, Enum):
    """Why a report was kept out."""

    MALFORMED_JSON = "malformed_json"
    """Not JSON; a line cut short looks like this."""
    TORN = "torn"
    """The compressed file breaks off in this line; `raw` holds what could be read of it."""
    TOO_LONG = "too_long"
    """Longer than `ingest.max_report_bytes`; `raw` holds its beginning."""
    TOO_DEEP = "too_deep"
    """Nested deeper than `ingest.max_depth`."""
    SCHEMA_VERSION = "schema_version"
    """Of a version this code does not read."""
    UNKNOWN_FIELD = "unknown_field"
    """Holds a field that the contract does not know."""
    NON_FINITE = "non_finite"
    """Holds NaN or an infinity."""
    CONTRACT = "contract"
    """Breaks another rule of the contract; `message` says which and where."""
    UNKNOWN_BLUEPRINT = "unknown_blueprint"
    """Names a blueprint that is not installed here."""
    CONFLICT = "conflict"
    """The id of a report that landed before with other content; the first one stays."""
    DUPLICATE = "duplicate"
    """A report that landed before, told again: nothing was lost."""


class QuarantineEntry(Contract):
    """One line that was kept out."""

    quarantine_id: Digest
    """SHA-256 of source, line and raw digest: the same on every redelivery."""
    reason: Reason
    message: Annotated[str, Field(max_length=1024)]
    """What was wrong and where."""
    source: str
    """The delivery it came in."""
    line: Count
    """Its line in that delivery, from 1."""
    report_id: str | None
    """If it could be read."""
    size_bytes: Count
    """Of what was read of the line."""
    raw_sha256: Digest
    """Of what was read of the line."""
    raw: bytes
    """Its first 16 KiB; empty for duplicates, and where the quarantine was full."""
    seen_at: UtcDatetime


QUARANTINE_SCHEMA = arrow_schema(QuarantineEntry)


class Quarantine:
    """The refused lines below one directory, whose files grow freely up to a budget.

    Entries whose raw bytes find no room lose them and keep the rest. Once the files have outgrown the budget, one entry
    per reason and source stands for all of a batch: a few kB of compressed garbage can be millions of lines, and even
    tens of bytes for each would fill a disk.
    """

    def __init__(self, directory: Path, tmp: Path, budget_bytes: int) -> None:
        self._directory = directory
        self._tmp = tmp
        self._room_bytes = budget_bytes - sum(path.stat().st_size for path in directory.glob("refused-*.parquet"))

    def write(self, entries: Sequence[QuarantineEntry]) -> int:
        """Writes entries durably into one file named by their ids; returns how many lost their raw bytes.

        A file of that name stays as it is: it holds the same refusals, seen earlier.
        """
        if not entries:
            return 0
        digest = hashlib.sha256("".join(entry.quarantine_id for entry in entries).encode()).hexdigest()
        name = f"refused-{digest[:16]}.parquet"
        try:
            if (self._directory / name).exists():
                return 0
            kept = list(self._fitting(entries)) if self._room_bytes > 0 else _folded(entries)
            self._directory.mkdir(parents=True, exist_ok=True)
            self._tmp.mkdir(parents=True, exist_ok=True)
            with (self._tmp / name).open("wb") as file:
                pq.write_table(_table(kept), file, compression="zstd", compression_level=3)
                file.flush()
                os.fsync(file.fileno())
                self._room_bytes -= file.tell()
            (self._tmp / name).replace(self._directory / name)
            sync_folder(self._directory)
        except OSError as error:
            raise TransientError(
                f"cannot quarantine {name}: {error.strerror or error}; check space and permissions"
            ) from error
        return sum(bool(entry.raw) for entry in entries) - sum(bool(entry.raw) for entry in kept)

    def _fitting(self, entries: Sequence[QuarantineEntry]) -> Iterator[QuarantineEntry]:
        """The entries, the raw bytes of each as far as there is room for them uncompressed."""
        room_bytes = self._room_bytes
        for entry in entries:
            has_room = len(entry.raw) <= room_bytes
            room_bytes -= len(entry.raw) if has_room else 0
            yield entry if has_room else entry.model_copy(update={"raw": b""})


def _folded(entries: Sequence[QuarantineEntry]) -> list[QuarantineEntry]:
    """The first entry of each reason and source, without its raw bytes; its message says for how many it stands."""
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
