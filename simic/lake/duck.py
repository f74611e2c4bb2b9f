"""DuckDB connections: offline, bounded, and for people read-only and fenced in."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import duckdb
import pyarrow as pa  # type: ignore[import-untyped]

from simic.contracts.errors import IntegrityError, TransientError

__all__ = ["PLACES", "connect", "create_parquet_view", "create_table", "sandbox"]

PLACES = 2**32
"""Rows that a file may have; more files than that divided by two have no place in 64 bits."""
_OFFLINE = {"autoinstall_known_extensions": "false", "autoload_known_extensions": "false"}


@contextmanager
def connect(
    database: Path | None = None, *, tmp: Path, memory_limit_mb: int, threads: int
) -> Iterator[duckdb.DuckDBPyConnection]:
    """A connection that never asks the network and spills to ``tmp``; in memory unless a file is named.

    Both limits are always set: DuckDB's own defaults are most of the machine's memory and disk.
    """
    _make(tmp)
    with _opened(":memory:" if database is None else str(database), tmp, memory_limit_mb, threads) as connection:
        yield connection


@contextmanager
def sandbox(
    database: Path, *, readable: Sequence[Path], tmp: Path, memory_limit_mb: int = 1024, threads: int = 2
) -> Iterator[duckdb.DuckDBPyConnection]:
    """A read-only connection for people's queries: files outside ``readable`` are refused, settings are locked."""
    _make(tmp)
    with _opened(str(database), tmp, memory_limit_mb, threads, is_read_only=True) as connection:
        connection.execute("SET allowed_directories = $paths", {"paths": [f"{path.absolute()}/" for path in readable]})
        connection.execute("SET enable_external_access = false")
        connection.execute("SET lock_configuration = true")
        yield connection


def create_parquet_view(
    connection: duckdb.DuckDBPyConnection,
    name: str,
    paths: Sequence[Path],
    schema: pa.Schema,
    *,
    has_file_names: bool = False,
    has_places: bool = False,
) -> None:
    """A relation ``name`` over Parquet files of ``schema``; without files, an empty table of that schema.

    ``has_file_names`` adds the column ``filename``; ``has_places`` adds ``place``, which says where a row lies: the
    file's index in ``paths`` times ``PLACES``, plus the row's in the file.
    """
    if not paths:
        names = [pa.field("filename", pa.string())] if has_file_names else []
        places = [pa.field("place", pa.int64())] if has_places else []
        create_table(connection, name, pa.schema([*schema, *names, *places]).empty_table())
        return
    listed = ", ".join("'" + str(path).replace("'", "''") + "'" for path in paths)
    options = f"hive_partitioning = false, filename = {has_file_names}, union_by_name = true"
    place = f", file_index::BIGINT * {PLACES} + file_row_number AS place" if has_places else ""
    connection.execute(f'CREATE VIEW "{name}" AS SELECT *{place} FROM read_parquet([{listed}], {options})')  # noqa: S608


def create_table(connection: duckdb.DuckDBPyConnection, name: str, table: pa.Table) -> None:
    """A DuckDB table ``name`` that holds the rows of an Arrow table."""
    connection.register("new_rows", table)
    connection.execute(f'CREATE TABLE "{name}" AS FROM new_rows')
    connection.unregister("new_rows")


def _make(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise TransientError(f"cannot make {folder}: {error.strerror or error}; check space and permissions") from error


@contextmanager
def _opened(
    name: str, tmp: Path, memory_limit_mb: int, threads: int, *, is_read_only: bool = False
) -> Iterator[duckdb.DuckDBPyConnection]:
    config: dict[str, str | bool | int | float | list[str]] = {
        **_OFFLINE,
        "memory_limit": f"{memory_limit_mb}MB",
        "threads": str(threads),
        "temp_directory": str(tmp),
        "max_temp_directory_size": "64GB",
    }
    try:
        connection = duckdb.connect(name, read_only=is_read_only, config=config)
    except duckdb.IOException as error:
        raise TransientError(f"cannot open {name}: {error}") from error
    except duckdb.Error as error:
        raise IntegrityError(f"{name} is not a DuckDB file: {error}") from error
    try:
        # The bar would be drawn on a person's terminal in the midst of ours.
        connection.execute("SET enable_progress_bar = false")
        connection.execute("SET TimeZone = 'UTC'")
        yield connection
    finally:
        connection.close()
