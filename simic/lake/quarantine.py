"""Reports that did not become experience, kept with the reason.

Parquet files under ``data/quarantine``, at least once: a batch delivered again after a crash writes its refusals again,
under the same name if it is the same batch. Readers keep one row per ``quarantine_id``.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from enum import Enum
from pathlib import Path
from typing import Annotated

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]
from pydantic import Field

from simic.contracts.base import Contract, Count, Digest, UtcDatetime
from simic.contracts.errors import TransientError
from simic.lake.parts import sync_folder
from simic.lake.schema import arrow_schema

__all__ = ["QUARANTINE_SCHEMA", "RAW_LIMIT_BYTES", "QuarantineEntry", "Reason", "write_quarantine"]

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
    """Its first 16 KiB; empty for duplicates."""
    seen_at: UtcDatetime


QUARANTINE_SCHEMA = arrow_schema(QuarantineEntry)


def write_quarantine(entries: Sequence[QuarantineEntry], *, directory: Path, tmp: Path) -> Path | None:
    """Writes entries durably into one file named by their ids; None if there are none.

    A file of that name stays as it is: it holds the same refusals, seen earlier.
    """
    if not entries:
        return None
    rows = [{**entry.model_dump(), "reason": entry.reason.value} for entry in entries]
    table = pa.Table.from_pylist(rows, schema=QUARANTINE_SCHEMA)
    digest = hashlib.sha256("".join(entry.quarantine_id for entry in entries).encode()).hexdigest()
    name = f"refused-{digest[:16]}.parquet"
    try:
        if (directory / name).exists():
            return directory / name
        directory.mkdir(parents=True, exist_ok=True)
        tmp.mkdir(parents=True, exist_ok=True)
        with (tmp / name).open("wb") as file:
            pq.write_table(table, file, compression="zstd", compression_level=3)
            file.flush()
            os.fsync(file.fileno())
        (tmp / name).replace(directory / name)
        sync_folder(directory)
    except OSError as error:
        raise TransientError(
            f"cannot quarantine {name}: {error.strerror or error}; check space and permissions"
        ) from error
    return directory / name
