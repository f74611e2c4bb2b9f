"""Parts: Parquet files that exist whole or not at all, and count only once a ledger lists them.

Order of a landing: write under ``tmp``, fsync, rename into place, fsync the directory; then, by the caller, one
ledger line, fsync. A part on disk that no ledger line lists is an orphan of a crash and may be deleted: its
source was never acknowledged.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Literal

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]
from pydantic import Field, ValidationError

from simic.contracts.base import Contract, Count, Digest, UtcDatetime
from simic.contracts.errors import IntegrityError, TransientError
from simic.lake.ledger import Ledger
from simic.lake.sealed import SealedFile, check_once

__all__ = [
    "PARTS_LEDGER",
    "Part",
    "check_parts",
    "committed_parts",
    "delete_orphans",
    "file_digest",
    "ledger_digest",
    "schema_digest",
    "sync_folder",
    "verify_part",
    "write_part",
]

PARTS_LEDGER = "ingest.jsonl"
"""Name of the ledger that lists parts."""

_ROW_GROUP = 131_072
"""Rows."""
_WHOLE = "whole-parts.json"


class Part(Contract):
    """One ledger line: a committed part."""

    schema_version: Literal[1] = 1
    part: Annotated[str, Field(pattern=r"^day=\d{4}-\d{2}-\d{2}/part-[0-9a-z]+-[0-9a-f]{16}\.parquet$")]
    """Path below the experience directory."""
    rows: Count
    size_bytes: Count
    sha256: Digest
    """Of the file."""
    sources: list[str]
    """Deliveries it holds rows of."""
    schema_digest: Digest
    """Of the columns' names and types."""
    landed_at: UtcDatetime
    code_version: str


def write_part(
    table: pa.Table, *, experience: Path, tmp: Path, stem: str, landed_at: datetime, checkpoint: Callable[[str], None]
) -> Path:
    """Writes ``day=<landed day>/part-<stem>.parquet`` durably and returns its path.

    ``checkpoint`` is called with ``part-written`` before the rename and ``part-renamed`` after.
    """
    folder = experience / f"day={landed_at.astimezone(UTC):%Y-%m-%d}"
    name = f"part-{stem}.parquet"
    try:
        is_new_folder = not folder.exists()
        folder.mkdir(parents=True, exist_ok=True)
        tmp.mkdir(parents=True, exist_ok=True)
        with (tmp / name).open("wb") as file:
            pq.write_table(
                table, file, compression="zstd", compression_level=3, row_group_size=_ROW_GROUP, store_schema=True
            )
            file.flush()
            os.fsync(file.fileno())
        checkpoint("part-written")
        (tmp / name).replace(folder / name)
        sync_folder(folder)
        if is_new_folder:
            sync_folder(experience)
    except OSError as error:
        raise TransientError(f"cannot land {name}: {error.strerror or error}; check space and permissions") from error
    checkpoint("part-renamed")
    return folder / name


def committed_parts(ledger: Ledger) -> list[Part]:
    """Every committed part, oldest first: the only list that readers use."""
    parts = []
    for number, record in enumerate(ledger.read(), 1):
        try:
            parts.append(Part.model_validate(record))
        except ValidationError as error:
            raise IntegrityError(f"{ledger.path}, line {number}: not a part: {error.errors()[0]['msg']}") from error
    return parts


def ledger_digest(parts: Iterable[Part]) -> str:
    """SHA-256 over one line ``<part> <rows> <sha256>`` per committed part, in ledger order."""
    lines = [f"{part.part} {part.rows} {part.sha256}\n" for part in parts]
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def delete_orphans(experience: Path, parts: Sequence[Part]) -> list[str]:
    """Deletes part files that no ledger line lists and returns their names."""
    listed = {part.part for part in parts}
    orphans = []
    for path in sorted(experience.glob("day=*/part-*.parquet")):
        name = path.relative_to(experience).as_posix()
        if name not in listed:
            path.unlink()
            sync_folder(path.parent)
            orphans.append(name)
    return orphans


def verify_part(experience: Path, part: Part) -> Path:
    """The part's path; raises IntegrityError if its bytes are not those committed."""
    path = experience / part.part
    if not path.is_file():
        raise IntegrityError(f"{path} is in the ledger but not on disk; restore it from a backup")
    if (found := file_digest(path)) != part.sha256:
        raise IntegrityError(f"{path}: expected SHA-256 {part.sha256}, found {found}; restore it from a backup")
    return path


def check_parts(experience: Path, parts: Iterable[Part], notes: Path) -> list[Path]:
    """The paths of parts that are about to be read; raises IntegrityError as ``check_once`` does."""
    files = [SealedFile(experience / part.part, part.sha256, part.size_bytes) for part in parts]
    check_once(files, notes / _WHOLE, "restore it from a backup")
    return [file.path for file in files]


def file_digest(path: Path) -> str:
    """SHA-256 of a file, in constant memory."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def schema_digest(schema: pa.Schema) -> str:
    """SHA-256 over the names, types and nullability of the columns."""
    text = "\n".join(f"{field.name} {field.type} {field.nullable}" for field in schema)
    return hashlib.sha256(text.encode()).hexdigest()


def sync_folder(folder: Path) -> None:
    """Makes renames within ``folder`` durable."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
