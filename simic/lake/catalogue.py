"""The catalogue: a throw-away DuckDB file of views over everything a home holds, and queries on it.

Parquet files and ledgers are the truth; the catalogue is rebuilt from them in a temporary file and renamed into place
before every query, so nobody ever waits for a writer and nothing in it can be stale.
"""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa  # type: ignore[import-untyped]
from pydantic import BaseModel

from simic.contracts.errors import ConfigError, IntegrityError, TransientError
from simic.contracts.receipts import GateDecision, PolicyVersion, SnapshotManifest, TrainingReport
from simic.contracts.snapshots import Pin
from simic.contracts.splits import TEST_SHARE, TRAIN_SHARE
from simic.lake.duck import connect, create_parquet_view, create_table, sandbox
from simic.lake.lake import Lake, open_lake
from simic.lake.pins import pinned
from simic.lake.policies import candidate_versions, champion_versions, gate_decisions, parse_record, trainings
from simic.lake.quarantine import QUARANTINE_SCHEMA
from simic.lake.relations import attach_parts, create_parts_view, reading_parts
from simic.lake.schema import arrow_schema
from simic.lake.sealed import SealedFile, check_once
from simic.lake.snapshots import SNAPSHOT_TABLES, schema_of
from simic.lake.values import plain_value
from simic.lake.views import load_views
from simic.runtime.settings import Home

__all__ = ["build_catalogue", "create_views", "query", "stream"]

_LANDED = "landed"
_WHOLE_SNAPSHOTS = "whole-snapshots.json"
_MEMORY_LIMIT_MB = 1024
_THREADS = 2


def build_catalogue(home: Home) -> Lake:
    """Rebuilds the catalogue and returns the lake it shows; IntegrityError where a ledger or a manifest is damaged."""
    lake = open_lake(home)
    try:
        home.tmp.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix="catalogue-", dir=home.tmp) as folder:
            built = Path(folder) / home.catalogue.name
            with connect(built, tmp=Path(folder), memory_limit_mb=_MEMORY_LIMIT_MB, threads=_THREADS) as connection:
                connection.execute("BEGIN")  # one commit for all, so one fsync
                _create_views(connection, lake)
                _write(connection)
            built.replace(home.catalogue)
    except duckdb.Error as error:
        raise IntegrityError(f"a file that the views show cannot be read: {error}") from error
    except OSError as error:
        raise TransientError(f"cannot write the catalogue: {error.strerror or error}; check space") from error
    return lake


def _write(connection: duckdb.DuckDBPyConnection) -> None:
    """Writes the file here, because closing does it too but is silent if it fails: the catalogue would be empty."""
    try:
        connection.execute("COMMIT")
        connection.execute("CHECKPOINT")
    except duckdb.Error as error:
        raise TransientError(f"cannot write the catalogue: {error}; check space") from error


def create_views(connection: duckdb.DuckDBPyConnection, home: Home) -> None:
    """Every view, over whatever the home holds; missing files mean empty views."""
    _create_views(connection, open_lake(home))


def _create_views(connection: duckdb.DuckDBPyConnection, lake: Lake) -> None:
    _create_relations(connection, lake)
    for view in load_views():
        connection.execute(f'CREATE VIEW "{view.name}" AS\n{view.sql}')


def query(home: Home, sql: str, limit: int | None = None) -> list[dict[str, Any]]:
    """The rows of one SELECT over the views as plain JSON objects, at most ``limit`` of them; raises as ``stream``."""
    with closing(stream(home, sql)) as rows:
        return list(itertools.islice(rows, limit))


def stream(home: Home, sql: str) -> Generator[dict[str, Any], None, None]:
    """The same row by row, in memory that does not grow with their number; close it when done.

    Runs read-only and without access to other files or the network. Raises ConfigError with DuckDB's own message
    for SQL that is wrong or does more than read.
    """
    lake = build_catalogue(home)
    folders = [home.experience, home.snapshots, home.quarantine]
    with (
        tempfile.TemporaryDirectory(prefix="query-", dir=home.tmp) as tmp,
        sandbox(home.catalogue, readable=folders, tmp=Path(tmp)) as connection,
    ):
        try:
            with reading_parts(lake):
                attach_parts(connection, _LANDED, lake)
                yield from _answer(connection, sql)
        except duckdb.OutOfMemoryException as error:
            raise TransientError(f"the query needs more memory than {_MEMORY_LIMIT_MB} MB: {error}") from error
        except duckdb.IOException as error:
            raise TransientError(f"a file went away while it was read: {error}; try again") from error
        except duckdb.Error as error:
            raise ConfigError(f"the query failed: {error}") from error


def _answer(connection: duckdb.DuckDBPyConnection, sql: str) -> Iterator[dict[str, Any]]:
    _refuse_other_than_select(connection, sql)
    cursor = connection.execute(sql)
    names = _unique([column[0] for column in cursor.description or []])
    for row in _rows(cursor):
        yield dict(zip(names, map(plain_value, row), strict=True))


def _refuse_other_than_select(connection: duckdb.DuckDBPyConnection, sql: str) -> None:
    statements = connection.extract_statements(sql)
    kinds = [statement.type for statement in statements]
    if kinds != [duckdb.StatementType.SELECT]:
        found = ", ".join(kind.name for kind in kinds) or "nothing"
        raise ConfigError(f"expected one SELECT (or FROM, DESCRIBE, SHOW, SUMMARIZE), found {found}")


def _rows(cursor: duckdb.DuckDBPyConnection) -> Iterator[tuple[Any, ...]]:
    while batch := cursor.fetchmany(1024):
        yield from batch


def _unique(names: Sequence[str]) -> list[str]:
    """``a, a`` becomes ``a, a_1``: every column stays visible."""
    unique: list[str] = []
    for name in names:
        free, number = name, 0
        while free in unique:
            number += 1
            free = f"{name}_{number}"
        unique.append(free)
    return unique


def _create_relations(connection: duckdb.DuckDBPyConnection, lake: Lake) -> None:
    """What the views read: Parquet as views, ledgers and manifests as small tables."""
    connection.execute(
        "CREATE MACRO split_of(set_name, host_key) AS CASE "
        f"WHEN ('0x' || sha256(set_name || ':' || host_key)[1:8])::UBIGINT % 100 < {TRAIN_SHARE} THEN 'train' "
        f"WHEN ('0x' || sha256(set_name || ':' || host_key)[1:8])::UBIGINT % 100 >= {100 - TEST_SHARE} THEN 'test' "
        "ELSE 'validation' END"
    )
    home = lake.home
    lake.check()
    create_parts_view(connection, _LANDED, lake)
    create_parquet_view(connection, "refused", sorted(home.quarantine.glob("*.parquet")), QUARANTINE_SCHEMA)
    create_table(connection, "policy_versions", _table(champion_versions(home), PolicyVersion))
    create_table(connection, "candidate_versions", _table(candidate_versions(home), PolicyVersion))
    create_table(connection, "gate_decisions", _table(gate_decisions(home), GateDecision))
    create_table(connection, "training_reports", _table(trainings(home), TrainingReport))
    create_table(connection, "pins", _table(list(pinned(home).values()), Pin))
    _create_snapshots(connection, home)


def _create_snapshots(connection: duckdb.DuckDBPyConnection, home: Home) -> None:
    """``manifests``; views over the Parquet of all snapshots; ``snapshot_files`` says whose each file is."""
    manifests = {
        path.parent: parse_record(path, path.read_bytes(), SnapshotManifest).model_copy(
            update={"path": str(path.parent)}  # where it lies now, should the home have moved
        )
        for path in sorted(home.snapshots.glob("*/manifest.json"))
    }
    check_once(
        [
            SealedFile(folder / file.name, file.sha256, file.size_bytes)
            for folder, manifest in manifests.items()
            for file in manifest.files
            if file.name in ("steps.parquet", "rejected.parquet")
        ],
        home.data / _WHOLE_SNAPSHOTS,
        "move the snapshot away and run `simic curate` again",
    )
    create_table(connection, "manifests", _table(list(manifests.values()), SnapshotManifest))
    owners = []
    for name in ("steps", "rejected"):
        files = [folder / f"{name}.parquet" for folder in manifests]
        schema = schema_of(SNAPSHOT_TABLES[name])
        create_parquet_view(connection, f"snapshot_{name}", files, schema, has_file_names=True)
        owners += [{"filename": str(path), "snapshot": manifests[path.parent].digest} for path in files]
    text = pa.schema([("filename", pa.string()), ("snapshot", pa.string())])
    create_table(connection, "snapshot_files", pa.Table.from_pylist(owners, schema=text))


def _table(rows: Sequence[BaseModel], model: type[BaseModel]) -> pa.Table:
    return pa.Table.from_pylist([row.model_dump(mode="python") for row in rows], schema=arrow_schema(model))
