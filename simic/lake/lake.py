"""The lake of a home: its ledger, its store and its committed state."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]

from simic.contracts.base import Contract
from simic.contracts.errors import ConfigError, IntegrityError, TransientError
from simic.contracts.results.lake import Span
from simic.lake.log import LedgerState, Part, StoreBound, read_state
from simic.lake.ownership import check_claims, check_held, claim
from simic.lake.parts import Checkpoint, schema_digest, write_part
from simic.lake.store import ArrowParts, LocalParts, PartStore, connect_store, parse_url
from simic.lake.verified_files import VerifiedFile, refresh_cache, verify_cached
from simic.ledgers import PARTS_LEDGER
from simic.ledgers.ledger import Ledger
from simic.runtime.files import atomic_file, fsync_dir, os_error_as_transient
from simic.runtime.home import Home

__all__ = ["APPEND_TMP", "ID_COLUMNS", "LAKE_LOCK", "Lake", "open_lake", "write_ids"]

LAKE_LOCK = "ingest"
"""Name of the lock of the ledger's single writer: ingest, compaction, retention or repair."""
APPEND_TMP = "ingest"
"""Folder below the home's tmp for unfinished parts; only the holder of the lock uses it."""
_WHOLE = "whole-parts.json"
_WHOLE_IDS = "whole-ids.json"
ID_COLUMNS = ("report_id", "content_digest", "source", "line")
"""Columns that identify a duplicate report and its first delivery."""


@dataclass(frozen=True)
class Lake:
    """A committed state of the lake; later commits do not change it."""

    home: Home
    ledger: Ledger
    store: PartStore
    state: LedgerState

    @property
    def parts(self) -> tuple[Part, ...]:
        """Live parts, in the order of the lake."""
        return self.state.parts

    def check(self) -> None:
        """Verify the live parts on disk. Raises IntegrityError for the first that is missing or changed.

        Parts that were verified before are read again only if their stamp changed. Parts in another store are verified
        when a snapshot is made.
        """
        verify_cached(self._sealed(), self.home.data / _WHOLE, "see `simic doctor`")

    def mark_verified(self) -> None:
        """Record that all live parts on disk were just verified and that hard links to them changed."""
        refresh_cache(self._sealed(), self.home.data / _WHOLE)

    def _sealed(self) -> list[VerifiedFile]:
        store = self.store
        if not isinstance(store, LocalParts):
            return []
        return [VerifiedFile(store.path(part.part), part.sha256, part.size_bytes) for part in self.parts]

    def append(
        self,
        table: pa.Table,
        sources: Iterable[str],
        landed_at: datetime,
        *,
        code_version: str,
        spans: Mapping[str, Span] | None = None,
        checkpoint: Checkpoint = lambda _point: None,
    ) -> Part:
        """Write rows as one part, commit it by one ledger line, and return it. The caller holds the lock.

        A crash before the ledger line leaves an orphan, which the next ingest moves to ``damaged``. This lake's
        ``state`` does not change.

        Args:
            table: rows with the columns of ``LANDED_SCHEMA``, at least one.
            sources: deliveries of the rows.
            landed_at: time of landing; its UTC day is the folder.
            code_version: version that the ledger line names.
            spans: lines read from deliveries whose names may come again with other lines.
            checkpoint: called with ``part-written`` before the part enters the store and ``part-renamed`` after.

        Raises:
            TransientError: if the part or the line cannot be written.
            IntegrityError: if the claim of this writer is no longer in the store.
        """
        contents = hashlib.sha256("".join(table.column("content_digest").to_pylist()).encode()).hexdigest()
        written = write_part(
            table,
            store=self.store,
            tmp=self.home.tmp / APPEND_TMP,
            stem=f"{table.column('report_id')[0].as_py()}-{contents[:16]}",
            landed_at=landed_at,
            checkpoint=checkpoint,
        )
        part = Part(
            part=written.name,
            rows=table.num_rows,
            size_bytes=written.size_bytes,
            sha256=written.sha256,
            sources=sorted(set(sources)),
            spans=dict(spans or {}),
            schema_digest=schema_digest(table.schema),
            landed_at=landed_at,
            code_version=code_version,
        )
        self.check_held()
        self.ledger.append(part.model_dump(mode="json"))
        return part

    def commit(self, line: Contract) -> Lake:
        """Append one ledger line durably and return the lake after it. The caller holds the lock.

        Raises:
            IntegrityError: if the claim of this writer is no longer in the store.
        """
        self.check_held()
        self.ledger.append(line.model_dump(mode="json"))
        return open_lake(self.home)

    def locate(self, at: datetime, code_version: str) -> Lake:
        """Claim the store, and bind the lake to it by a ledger line before the first part, if it is not local.

        Raises:
            IntegrityError: if the store has parts of another home, of a copy of this one, or of a lost ledger.
        """
        self.check_owner()
        self._claim()
        if self.home.lake_url is None or self.state.url is not None:
            return self
        return self.commit(StoreBound(at=at, code_version=code_version, url=self.home.lake_url))

    def claim(self) -> None:
        """Claim the store for this home before it is changed. The caller holds the lock.

        A store that the lake is not bound to has nothing to change and is not claimed: its address may be mistyped.

        Raises:
            IntegrityError: as ``check_owner``.
        """
        self.check_owner()
        if self.state.url is not None:
            self._claim()

    def check_owner(self) -> None:
        """Raise IntegrityError if the store belongs to another home or to a copy of this one; changes nothing.

        Two ledgers cannot share a prefix: each would take the other's parts for orphans.
        """
        store = self.store
        if not isinstance(store, ArrowParts):
            return
        check_claims(self.home, store)
        if self.state.url is None and (names := store.names()):
            raise IntegrityError(
                f"{store.place} holds {len(names)} parts, but the ledger of {self.home.root} names none: name another "
                "prefix if they are another home's, or restore the ledger from a backup; see `simic doctor`"
            )

    def check_held(self) -> None:
        """Raise IntegrityError if the claim of this writer is no longer in the store; changes nothing."""
        if isinstance(self.store, ArrowParts):
            check_held(self.home, self.store)

    def _claim(self) -> None:
        if isinstance(self.store, ArrowParts):
            claim(self.home, self.store)

    def seen_files(self) -> list[Path]:
        """Return local Parquet files with the ``ID_COLUMNS`` of every known report, including dropped ones.

        Raises:
            IntegrityError: for tombstones that are missing or changed: a duplicate would land again, or a new report
                would be taken for a duplicate. Parts are verified by ``check``.
        """
        tombstones = [VerifiedFile(self.home.ids / ids.file, ids.sha256, None) for ids in self.state.tombstones]
        verify_cached(tombstones, self.home.data / _WHOLE_IDS, "see `simic doctor --deep`")
        return [*(self.ids_file(part) for part in self.parts), *(file.path for file in tombstones)]

    def ids_file(self, part: Part) -> Path:
        """Return the part itself if it is local; otherwise a local copy of its ids, made on first use."""
        if isinstance(self.store, LocalParts):
            path = self.store.path(part.part)
            if not path.exists():
                raise IntegrityError(f"{path} is in the ledger but not there; see `simic doctor`")
            return path
        copy = self.home.ids / f"part-{part.sha256[:16]}.parquet"
        if not copy.exists():
            write_ids(self, [part], copy)
        return copy


def open_lake(home: Home) -> Lake:
    """Open the lake of a home.

    Raises:
        IntegrityError: for a damaged ledger.
        ConfigError: if the settings name another store than the ledger.
    """
    ledger = Ledger(home.ledger / PARTS_LEDGER)
    state = read_state(ledger)
    return Lake(home, ledger, _store(home, state), state)


def write_ids(lake: Lake, parts: Iterable[Part], target: Path) -> int:
    """Write the ``ID_COLUMNS`` of some parts into one local file, atomically; return the number of rows."""
    rows = 0
    is_new_folder = not target.parent.exists()
    with os_error_as_transient(f"write {target.name}"), atomic_file(target, tmp=lake.home.tmp) as file:
        writer = None
        for part in parts:
            for batch in _id_batches(lake.store, part):
                writer = writer or pq.ParquetWriter(file, batch.schema, compression="zstd", compression_level=3)
                writer.write_batch(batch)
                rows += batch.num_rows
        if writer is None:
            raise IntegrityError(f"there are no ids to write into {target.name}")
        writer.close()
    if is_new_folder:
        fsync_dir(target.parent.parent)
    return rows


def _id_batches(store: PartStore, part: Part) -> Iterable[pa.RecordBatch]:
    try:
        with store.open(part.part) as file:
            yield from pq.ParquetFile(file).iter_batches(columns=list(ID_COLUMNS))
    except FileNotFoundError as error:
        raise IntegrityError(f"{store.place}/{part.part} is in the ledger but not there; see `simic doctor`") from error
    except pa.ArrowInvalid as error:
        raise IntegrityError(f"{store.place}/{part.part} cannot be read: {error}; see `simic doctor`") from error
    except OSError as error:
        raise TransientError(f"cannot read {store.place}/{part.part}: {error}; try again") from error


def _store(home: Home, state: LedgerState) -> PartStore:
    asked = home.lake_url
    if state.url is None and asked is None:
        return LocalParts(home.experience)
    if state.url is None and asked is not None:
        if state.parts or state.retired:
            raise ConfigError(
                f"parts of {home.root} lie in {home.experience}, but lake.url or SIMIC_LAKE_URL says {asked}; "
                "a lake does not move: unset it, or begin in a new home"
            )
        return connect_store(asked)
    known = str(state.url)
    if asked is not None and parse_url(asked).base != parse_url(known).base:
        raise ConfigError(
            f"parts of {home.root} lie in {known}, but lake.url or SIMIC_LAKE_URL says {asked}; a lake does not move: "
            "unset it, or begin in a new home"
        )
    return connect_store(asked or known)  # the same bucket and prefix may be reached in another way
