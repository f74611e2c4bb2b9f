"""The catalogue: a throw-away DuckDB file of views over everything a home holds, and queries on it.

Parquet files and ledgers are the truth; the catalogue is rebuilt from them in a temporary file and renamed into place
before every query, so nobody ever waits for a writer and nothing in it can be stale.
"""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

import duckdb
import pyarrow as pa  # type: ignore[import-untyped]
from pydantic import BaseModel, ValidationError

from simic.contracts.errors import ConfigError, IntegrityError, TransientError
from simic.contracts.receipts import GateDecision, PolicyVersion, SnapshotManifest
from simic.contracts.splits import TEST_SHARE, TRAIN_SHARE
from simic.lake.duck import connect, create_parquet_view, create_table, sandbox
from simic.lake.ledger import Ledger
from simic.lake.parts import PARTS_LEDGER, check_parts, committed_parts
from simic.lake.quarantine import QUARANTINE_SCHEMA
from simic.lake.schema import LANDED_SCHEMA, arrow_schema
from simic.lake.sealed import SealedFile, check_once
from simic.lake.snapshots import STEP_COLUMNS, schema_of
from simic.lake.values import plain_value
from simic.lake.views import load_views
from simic.runtime.settings import Home

__all__ = ["GATES_LEDGER", "POLICIES_LEDGER", "build_catalogue", "create_views", "query"]

POLICIES_LEDGER = "policies.jsonl"
"""Name of the ledger of ``PolicyVersion`` lines."""
GATES_LEDGER = "gates.jsonl"
"""Name of the ledger of ``GateDecision`` lines."""

M = TypeVar("M", bound=BaseModel)

_WHOLE_SNAPSHOTS = "whole-snapshots.json"
_MEMORY_LIMIT_MB = 1024
_THREADS = 2


def build_catalogue(home: Home) -> Path:
    """Rebuilds the catalogue and returns its path; raises IntegrityError where a ledger or a manifest is damaged."""
    try:
        home.tmp.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix="catalogue-", dir=home.tmp) as folder:
            built = Path(folder) / home.catalogue.name
            with connect(built, tmp=Path(folder), memory_limit_mb=_MEMORY_LIMIT_MB, threads=_THREADS) as connection:
                connection.execute("BEGIN")  # one commit for all, so one fsync
                create_views(connection, home)
                _write(connection)
            built.replace(home.catalogue)
    except duckdb.Error as error:
        raise IntegrityError(f"a file that the views show cannot be read: {error}") from error
    except OSError as error:
        raise TransientError(f"cannot write the catalogue: {error.strerror or error}; check space") from error
    return home.catalogue


def _write(connection: duckdb.DuckDBPyConnection) -> None:
    """Writes the file here, because closing does it too but is silent if it fails: the catalogue would be empty."""
    try:
        connection.execute("COMMIT")
        connection.execute("CHECKPOINT")
    except duckdb.Error as error:
        raise TransientError(f"cannot write the catalogue: {error}; check space") from error


def create_views(connection: duckdb.DuckDBPyConnection, home: Home) -> None:
    """Every view, over whatever the home holds; missing files mean empty views."""
    _create_relations(connection, home)
    for view in load_views():
        connection.execute(f'CREATE VIEW "{view.name}" AS\n{view.sql}')


def query(home: Home, sql: str, limit: int | None = None) -> list[dict[str, Any]]:
    """The rows of one SELECT over the views as plain JSON objects, at most ``limit`` of them.

    Runs read-only and without access to other files or the network. Raises ConfigError with DuckDB's own message
    for SQL that is wrong or does more than read.
    """
    path = build_catalogue(home)
    folders = [home.experience, home.snapshots, home.quarantine]
    with (
        tempfile.TemporaryDirectory(prefix="query-", dir=home.tmp) as tmp,
        sandbox(path, readable=folders, tmp=Path(tmp)) as connection,
    ):
        try:
            _refuse_other_than_select(connection, sql)
            cursor = connection.execute(sql)
            names = _unique([column[0] for column in cursor.description or []])
            rows = itertools.islice(_rows(cursor), limit)
            return [dict(zip(names, map(plain_value, row), strict=True)) for row in rows]
        except duckdb.OutOfMemoryException as error:
            raise TransientError(f"the query needs more memory than {_MEMORY_LIMIT_MB} MB: {error}") from error
        except duckdb.Error as error:
            raise ConfigError(f"the query failed: {error}") from error


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


def _create_relations(connection: duckdb.DuckDBPyConnection, home: Home) -> None:
    """What the views read: Parquet as views, ledgers and manifests as small tables."""
    connection.execute(
        "CREATE MACRO split_of(set_name, host_key) AS CASE "
        f"WHEN ('0x' || sha256(set_name || ':' || host_key)[1:8])::UBIGINT % 100 < {TRAIN_SHARE} THEN 'train' "
        f"WHEN ('0x' || sha256(set_name || ':' || host_key)[1:8])::UBIGINT % 100 >= {100 - TEST_SHARE} THEN 'test' "
        "ELSE 'validation' END"
    )
    parts = committed_parts(Ledger(home.ledger / PARTS_LEDGER))
    create_parquet_view(connection, "landed", check_parts(home.experience, parts, home.data), LANDED_SCHEMA)
    create_parquet_view(connection, "refused", sorted(home.quarantine.glob("*.parquet")), QUARANTINE_SCHEMA)
    versions = _lines(home.ledger / POLICIES_LEDGER, PolicyVersion)
    decisions = _lines(home.ledger / GATES_LEDGER, GateDecision)
    create_table(connection, "policy_versions", _table(versions, PolicyVersion))
    create_table(connection, "gate_decisions", _table(decisions, GateDecision))
    _create_snapshots(connection, home)


def _create_snapshots(connection: duckdb.DuckDBPyConnection, home: Home) -> None:
    manifests = {
        path.with_name("steps.parquet"): _parse(path, path.read_bytes(), SnapshotManifest).model_copy(
            update={"path": str(path.parent)}  # where it lies now, should the home have moved
        )
        for path in sorted(home.snapshots.glob("*/manifest.json"))
    }
    check_once(
        [
            SealedFile(steps, file.sha256, file.size_bytes)
            for steps, manifest in manifests.items()
            for file in manifest.files
            if file.name == steps.name
        ],
        home.data / _WHOLE_SNAPSHOTS,
        "move the snapshot away and run `simic curate` again",
    )
    create_table(connection, "manifests", _table(list(manifests.values()), SnapshotManifest))
    create_parquet_view(connection, "snapshot_steps", list(manifests), schema_of(STEP_COLUMNS), has_file_names=True)
    files = {"filename": [str(path) for path in manifests], "snapshot": [m.digest for m in manifests.values()]}
    create_table(connection, "snapshot_files", pa.table(files, pa.schema([(name, pa.string()) for name in files])))


def _table(rows: Sequence[BaseModel], model: type[BaseModel]) -> pa.Table:
    return pa.Table.from_pylist([row.model_dump(mode="python") for row in rows], schema=arrow_schema(model))


def _lines(path: Path, model: type[M]) -> list[M]:
    return [_parse(f"{path}, line {n}", record, model) for n, record in enumerate(Ledger(path).read(), 1)]


def _parse(place: object, record: Any, model: type[M]) -> M:
    try:
        return model.model_validate_json(record) if isinstance(record, bytes) else model.model_validate(record)
    except ValidationError as error:
        raise IntegrityError(f"{place}: not a {model.__name__}: {error.errors()[0]['msg']}") from error
