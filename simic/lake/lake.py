"""The lake of a home: its ledger, its store, and what has been committed so far."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]

from simic.contracts.base import Contract
from simic.contracts.errors import ConfigError, IntegrityError, TransientError
from simic.lake.ledger import Ledger
from simic.lake.operations import PARTS_LEDGER, LedgerState, Located, Part, read_state
from simic.lake.parts import synced
from simic.lake.sealed import SealedFile, check_once, renew
from simic.lake.store import ArrowParts, LocalParts, PartStore, connect_store, parse_url
from simic.runtime.durable import sync_folder
from simic.runtime.settings import Home

__all__ = ["ID_COLUMNS", "LAKE_LOCK", "Lake", "open_lake", "write_ids"]

LAKE_LOCK = "ingest"
"""Name of the lock that the one writer of the ledger holds, be it ingesting, merging, dropping or repairing."""
_WHOLE = "whole-parts.json"
_WHOLE_IDS = "whole-ids.json"
_HOME_ID = "home.id"
"""Beside the ledgers, so that it is kept and restored with them."""
ID_COLUMNS = ("report_id", "content_digest", "source", "line")
"""What recognises a report told twice, and says where it was told first."""


@dataclass(frozen=True)
class Lake:
    """A committed state; what is committed later does not show in it."""

    home: Home
    ledger: Ledger
    store: PartStore
    state: LedgerState

    @property
    def parts(self) -> tuple[Part, ...]:
        """Live parts, in the order of the lake."""
        return self.state.parts

    def check(self) -> None:
        """Raises IntegrityError that names the first live part on disk which is not what was committed.

        Parts found whole before are looked at again only if the file system says they changed; parts in another store
        are read to the last byte when a snapshot is made.
        """
        check_once(self._sealed(), self.home.data / _WHOLE, "see `simic doctor`")

    def were_read(self) -> None:
        """After all live parts on disk were read to the last byte, found whole, and given or rid of other names."""
        renew(self._sealed(), self.home.data / _WHOLE)

    def _sealed(self) -> list[SealedFile]:
        store = self.store
        if not isinstance(store, LocalParts):
            return []
        return [SealedFile(store.path(part.part), part.sha256, part.size_bytes) for part in self.parts]

    def commit(self, line: Contract) -> Lake:
        """One ledger line, durable when this returns; the lake as it is then. The caller holds the lock."""
        self.ledger.append(line.model_dump(mode="json"))
        return open_lake(self.home)

    def locate(self, at: datetime, code_version: str) -> Lake:
        """Before anything lands: writes down which store the parts are in, if it is not the home's own.

        Raises IntegrityError where the parts in it are another home's, or of a ledger that is no more.
        """
        self.check_owner()
        if isinstance(self.store, ArrowParts) and self.store.owner() is None:
            self.store.own(_home_id(self.home))
        if self.home.lake_url is None or self.state.url is not None:
            return self
        return self.commit(Located(at=at, code_version=code_version, url=self.home.lake_url))

    def check_owner(self) -> None:
        """Raises IntegrityError where another home has said that the parts in the store are its own; changes nothing.

        Two ledgers cannot share a prefix: each would take the other's parts for orphans.
        """
        store = self.store
        if not isinstance(store, ArrowParts):
            return
        owner = store.owner()
        if owner is not None and owner != (known := _home_id(self.home, is_made=False)):
            raise IntegrityError(
                f"{store.place} belongs to home {owner}, this is {known or 'a home without an id'}: name another "
                f"prefix, or restore {self.home.ledger / _HOME_ID} from a backup if this is that home"
            )
        if self.state.url is None and (found := store.names()):
            raise IntegrityError(
                f"{store.place} holds {len(found)} parts, but the ledger of {self.home.root} names none: name another "
                "prefix if they are another home's, or restore the ledger from a backup; see `simic doctor`"
            )

    def seen_files(self) -> list[Path]:
        """Local Parquet files with the ``ID_COLUMNS`` of every report that is known, dropped ones included.

        Raises IntegrityError for ids of dropped reports that are missing or not as committed: without them a report
        told again would land twice, with others a new one would pass for a repetition. Parts are for ``check``.
        """
        remembered = [SealedFile(self.home.ids / ids.file, ids.sha256, None) for ids in self.state.remembered]
        check_once(remembered, self.home.data / _WHOLE_IDS, "see `simic doctor --deep`")
        return [*(self.ids_file(part) for part in self.parts), *(file.path for file in remembered)]

    def ids_file(self, part: Part) -> Path:
        """The part itself, where it is at hand; else a local copy of its ids, made on first use."""
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
    """Raises IntegrityError for a damaged ledger and ConfigError where settings name another store than the ledger."""
    ledger = Ledger(home.ledger / PARTS_LEDGER)
    state = read_state(ledger)
    return Lake(home, ledger, _store(home, state), state)


def write_ids(lake: Lake, parts: Iterable[Part], target: Path) -> int:
    """The ``ID_COLUMNS`` of some parts as one local file, whole or absent; returns how many."""
    rows, unfinished = 0, lake.home.tmp / f"{target.name}.{os.getpid()}.tmp"
    with synced(unfinished) as file:
        writer = None
        for part in parts:
            for batch in _id_batches(lake.store, part):
                writer = writer or pq.ParquetWriter(file, batch.schema, compression="zstd", compression_level=3)
                writer.write_batch(batch)
                rows += batch.num_rows
        if writer is None:
            raise IntegrityError(f"there are no ids to write into {target.name}")
        writer.close()
    is_new_folder = not target.parent.exists()
    target.parent.mkdir(parents=True, exist_ok=True)
    if is_new_folder:
        sync_folder(target.parent.parent)
    unfinished.replace(target)
    return rows


def _home_id(home: Home, *, is_made: bool = True) -> str:
    """Random, made once; empty where there is none and ``is_made`` is false."""
    path = home.ledger / _HOME_ID
    try:
        return path.read_text("ascii").strip()
    except FileNotFoundError:
        if not is_made:
            return ""
    made, unfinished = secrets.token_hex(16), home.tmp / f"{_HOME_ID}.{os.getpid()}.tmp"
    with synced(unfinished) as file:
        file.write(made.encode())
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished.replace(path)
    sync_folder(path.parent)
    return made


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
