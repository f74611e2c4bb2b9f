"""Parts: Parquet files that exist whole or not at all, and count only once a ledger lists them.

Order of a landing: write under ``tmp``, fsync, hand it to the store, which makes it durable; then, by the caller, one
ledger line, fsync. A part in the store that no ledger line names is the orphan of a crash, whose source was never
acknowledged; but where there are many, it is the ledger that is wrong, so orphans are set aside and never deleted.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import IO, NamedTuple

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]

from simic.contracts.errors import IntegrityError, TransientError
from simic.lake.columns import categorical_columns
from simic.lake.operations import PARTS_LEDGER, LedgerState, Part, committed_parts, ledger_digest
from simic.lake.store import LocalParts, PartStore

__all__ = [
    "PARTS_LEDGER",
    "Part",
    "Written",
    "check_part",
    "committed_parts",
    "file_digest",
    "find_orphans",
    "ledger_digest",
    "part_name",
    "schema_digest",
    "set_orphans_aside",
    "store_part",
    "synced",
    "verify_part",
    "write_part",
]

_ROW_GROUP = 131_072
"""Rows."""
_MOST_ORPHANS = 3
"""A kill leaves one, be it an ingest's or a merge's, and the next ingest looks before it lands anything."""

Checkpoint = Callable[[str], None]


class Written(NamedTuple):
    """A part in the store, not yet committed."""

    name: str
    size_bytes: int
    sha256: str


def write_part(
    table: pa.Table, *, store: PartStore, tmp: Path, stem: str, landed_at: datetime, checkpoint: Checkpoint
) -> Written:
    """Writes ``day=<landed day>/part-<stem>.parquet`` durably.

    ``checkpoint`` is called with ``part-written`` before it enters the store and ``part-renamed`` after.
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
    """Hands a synced file to the store; it gets a ledger line next, or is an orphan."""
    written = Written(name, unfinished.stat().st_size, file_digest(unfinished))
    checkpoint("part-written")
    store.put(unfinished, name)
    checkpoint("part-renamed")
    return written


def part_name(day: datetime, stem: str) -> str:
    """Where a part of that day (UTC) lies."""
    return f"day={day:%Y-%m-%d}/part-{stem}.parquet"


@contextmanager
def synced(path: Path) -> Iterator[IO[bytes]]:
    """A new file for writing, on disk when the context ends; a full disk or a denied one is a TransientError."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise TransientError(
            f"cannot write {path.name}: {error.strerror or error}; check space and permissions"
        ) from error


def find_orphans(store: PartStore, state: LedgerState) -> list[str]:
    """Part files that no ledger line names: written by a run that was killed before it committed them."""
    named = state.named
    return [name for name in store.names() if name not in named]


def set_orphans_aside(store: PartStore, state: LedgerState) -> list[str]:
    """Moves part files that no ledger line names out of the way and returns their names.

    Raises IntegrityError, and moves nothing, where there are more than kills leave: then they are somebody's parts.
    """
    found = find_orphans(store, state)
    most = _MOST_ORPHANS if state.named else 1
    if len(found) > most:
        raise IntegrityError(
            f"{store.place} holds {len(found)} parts that no ledger line names, from {found[0]} to {found[-1]}; killed "
            f"runs leave at most {most}, so the ledger is older than its store, or these are another home's: restore "
            "the newest ledger or name another place, and see `simic doctor`; nothing was changed"
        )
    for name in found:
        store.set_aside(name)
    return found


def check_part(store: PartStore, part: Part) -> None:
    """Raises IntegrityError if what the store holds is not, to the byte, what was committed."""
    found = store.size_bytes(part.part)
    place = f"{store.place}/{part.part}"
    if found is None:
        raise IntegrityError(f"{place} is in the ledger but not there; see `simic doctor`")
    if found != part.size_bytes:
        raise IntegrityError(f"{place}: expected {part.size_bytes} bytes, found {found}; see `simic doctor`")
    if (digest := store.digest(part.part)) != part.sha256:
        raise IntegrityError(f"{place}: expected SHA-256 {part.sha256}, found {digest}; see `simic doctor --deep`")


def verify_part(experience: Path, part: Part) -> Path:
    """The path of a part in a directory; raises IntegrityError if its bytes are not those committed."""
    store = LocalParts(experience)
    check_part(store, part)
    return store.path(part.part)


def file_digest(path: Path) -> str:
    """SHA-256 of a file, in constant memory."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def schema_digest(schema: pa.Schema) -> str:
    """SHA-256 over the names, types and nullability of the columns."""
    text = "\n".join(f"{field.name} {field.type} {field.nullable}" for field in schema)
    return hashlib.sha256(text.encode()).hexdigest()
