"""Parts: Parquet files that exist completely or not at all, and count only once the ledger lists them.

A landing writes the part under ``tmp``, syncs it and moves it into the store; the caller then appends one ledger line.
A part in the store that no line names is an orphan of a crash, and its source was not acknowledged. Many orphans mean
that the ledger is wrong, so orphans are moved to ``damaged`` and never deleted.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import IO, NamedTuple

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]

from simic.contracts.errors import IntegrityError
from simic.lake.arrow_reader import categorical_columns
from simic.lake.log import LedgerState, Part, committed_parts, ledger_digest
from simic.lake.store import PartStore
from simic.runtime.files import durable_file, os_error_as_transient, sha256_file

__all__ = [
    "Checkpoint",
    "Part",
    "Written",
    "check_part",
    "committed_parts",
    "find_orphans",
    "ledger_digest",
    "move_orphans_to_damaged",
    "part_name",
    "schema_digest",
    "store_part",
    "synced",
    "write_part",
]

_ROW_GROUP = 131_072
"""Rows of a row group."""
_MOST_ORPHANS = 3
"""Largest number of orphans: a killed ingest or merge leaves one, and the next ingest moves it away first."""

Checkpoint = Callable[[str], None]


class Written(NamedTuple):
    """A part in the store, not yet committed."""

    name: str
    size_bytes: int
    sha256: str


def write_part(
    table: pa.Table, *, store: PartStore, tmp: Path, stem: str, landed_at: datetime, checkpoint: Checkpoint
) -> Written:
    """Write ``<day of landed_at>/part-<stem>.parquet`` durably, without a ledger line.

    ``checkpoint`` is called with ``part-written`` before the part enters the store and ``part-renamed`` after.
    """
    name = part_name(landed_at, stem)
    unfinished = tmp / Path(name).name
    with synced(unfinished) as file:
        pq.write_table(
            table,
            file,
            compression="zstd",
            compression_level=3,
            row_group_size=_ROW_GROUP,
            store_schema=True,
            use_dictionary=categorical_columns(table.schema),
        )
    return store_part(unfinished, name, store, checkpoint)


def store_part(unfinished: Path, name: str, store: PartStore, checkpoint: Checkpoint) -> Written:
    """Move a synced file into the store; without a ledger line next it is an orphan."""
    written = Written(name, unfinished.stat().st_size, sha256_file(unfinished))
    checkpoint("part-written")
    store.put(unfinished, name)
    checkpoint("part-renamed")
    return written


def part_name(day: datetime, stem: str) -> str:
    """Return the name in the store of a part of that UTC day."""
    return f"{day:%Y-%m-%d}/part-{stem}.parquet"


@contextmanager
def synced(path: Path) -> Iterator[IO[bytes]]:
    """Open ``path`` for writing and sync it when the block ends. Raises TransientError if it cannot be written."""
    with os_error_as_transient(f"write {path.name}"):
        path.parent.mkdir(parents=True, exist_ok=True)
        with durable_file(path) as file:
            yield file


def find_orphans(store: PartStore, state: LedgerState) -> list[str]:
    """Return part files that no ledger line names: a run was killed before it committed them."""
    named = state.named
    return [name for name in store.names() if name not in named]


def move_orphans_to_damaged(store: PartStore, state: LedgerState) -> list[str]:
    """Move part files that no ledger line names to ``damaged`` and return their names.

    Raises:
        IntegrityError: if there are more than killed runs leave, so that the ledger must be wrong; nothing is moved.
    """
    orphans = find_orphans(store, state)
    most = _MOST_ORPHANS if state.named else 1
    if len(orphans) > most:
        raise IntegrityError(
            f"{store.place} holds {len(orphans)} parts that no ledger line names, from {orphans[0]} to {orphans[-1]}; "
            f"killed runs leave at most {most}, so the ledger is older than its store, or these are another home's: "
            "restore the newest ledger or name another place, and see `simic doctor`; nothing was changed"
        )
    for name in orphans:
        store.move_to_damaged(name)
    return orphans


def check_part(store: PartStore, part: Part) -> None:
    """Raise IntegrityError unless the part in the store has the committed size and SHA-256."""
    size_bytes = store.size_bytes(part.part)
    place = f"{store.place}/{part.part}"
    if size_bytes is None:
        raise IntegrityError(f"{place} is in the ledger but not there; see `simic doctor`")
    if size_bytes != part.size_bytes:
        raise IntegrityError(f"{place}: expected {part.size_bytes} bytes, found {size_bytes}; see `simic doctor`")
    if (digest := store.digest(part.part)) != part.sha256:
        raise IntegrityError(f"{place}: expected SHA-256 {part.sha256}, found {digest}; see `simic doctor --deep`")


def schema_digest(schema: pa.Schema) -> str:
    """Return the SHA-256 over names, types and nullability of the columns; equal for a table and for its footer."""
    text = "\n".join(f"{field.name} {_as_in_memory(field.type)} {field.nullable}" for field in schema)
    return hashlib.sha256(text.encode()).hexdigest()


def _as_in_memory(kind: pa.DataType) -> pa.DataType:
    """Return the type with Arrow's name for the values of a list, ``item``; Parquet calls them ``element``."""
    if pa.types.is_list(kind):
        return pa.list_(kind.value_field.with_name("item").with_type(_as_in_memory(kind.value_type)))
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(_as_in_memory(field.type)) for field in kind])
    return kind
