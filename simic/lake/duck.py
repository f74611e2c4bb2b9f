"""DuckDB connections: offline, with memory and disk limits; for user queries also read-only and sandboxed."""

from __future__ import annotations

import errno
import os
import resource
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import duckdb
import pyarrow as pa  # type: ignore[import-untyped]

from simic.contracts.errors import IntegrityError, ResourceLimitError, TransientError

__all__ = ["ROW_ID_STRIDE", "TMP_SHARE", "connect", "create_parquet_view", "create_table", "exactly", "sandbox"]

ROW_ID_STRIDE = 2**32
"""Most rows per file; a row id is the index of the file times this, plus the row number, in 64 bits."""
TMP_SHARE = 8
"""Ratio of a query's temporary disk limit to its memory limit."""
_TMP_LIMIT_MB = 64_000
_REMEDY = "the limit is fixed, so make the work smaller, and report this if it was small"
_OFFLINE = {"autoinstall_known_extensions": "false", "autoload_known_extensions": "false"}


@contextmanager
def connect(
    database: Path | None = None,
    *,
    tmp: Path,
    memory_limit_mb: int,
    threads: int,
    what: str = "DuckDB",
    remedy: str = _REMEDY,
) -> Iterator[duckdb.DuckDBPyConnection]:
    """Open a connection that uses no network and spills to ``tmp``; in memory unless a file is given.

    Both limits are always set, because DuckDB's defaults are most of the machine's memory and disk.

    Args:
        database: file of the database; in memory if None.
        tmp: folder for temporary files.
        memory_limit_mb: memory limit.
        threads: number of threads.
        what: name of the work, for the message of an exceeded limit.
        remedy: next step, for the same message.

    Raises:
        ResourceLimitError: if a limit is reached. A retry would fail again.
    """
    _make(tmp)
    name = ":memory:" if database is None else str(database)
    with (
        _limited(what, memory_limit_mb, _TMP_LIMIT_MB, remedy),
        _opened(name, tmp, memory_limit_mb, threads, _TMP_LIMIT_MB) as connection,
    ):
        yield connection


@contextmanager
def sandbox(
    database: Path, *, readable: Sequence[Path], tmp: Path, memory_limit_mb: int = 1024, threads: int = 2
) -> Iterator[duckdb.DuckDBPyConnection]:
    """Open a read-only connection for queries of users: only files in ``readable``, settings locked.

    It spills at most ``TMP_SHARE`` times its memory to ``tmp``. Raises ResourceLimitError as ``connect`` does.
    """
    _make(tmp)
    tmp_limit_mb = TMP_SHARE * memory_limit_mb
    remedy = "ask for less, or give it more with --memory-mb (its temporary disk grows with it)"
    with (
        _limited("the query", memory_limit_mb, tmp_limit_mb, remedy),
        _opened(str(database), tmp, memory_limit_mb, threads, tmp_limit_mb, is_read_only=True) as connection,
    ):
        folders = {f"{name}/" for path in readable for name in (str(path.absolute()), exactly(path.absolute()))}
        connection.execute("SET allowed_directories = $paths", {"paths": sorted(folders)})
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
    with_row_ids: bool = False,
) -> None:
    """Create the view ``name`` over Parquet files; without files, an empty table of ``schema``.

    ``has_file_names`` adds the column ``filename``. ``with_row_ids`` adds ``row_id``, the position of a row: the file's
    index in ``paths`` times ``ROW_ID_STRIDE``, plus the row's index in the file.
    """
    if not paths:
        names = [pa.field("filename", pa.string())] if has_file_names else []
        row_ids = [pa.field("row_id", pa.int64())] if with_row_ids else []
        create_table(connection, name, pa.schema([*schema, *names, *row_ids]).empty_table())
        return
    listed = ", ".join("'" + exactly(path).replace("'", "''") + "'" for path in paths)
    options = f"hive_partitioning = false, filename = {has_file_names}, union_by_name = true"
    row_id = f", file_index::BIGINT * {ROW_ID_STRIDE} + file_row_number AS row_id" if with_row_ids else ""
    connection.execute(f'CREATE VIEW "{name}" AS SELECT *{row_id} FROM read_parquet([{listed}], {options})')  # noqa: S608


def exactly(path: Path) -> str:
    """Return a pattern that matches only ``path``; DuckDB treats ``*``, ``?`` and ``[`` in a path as a pattern."""
    return "".join(f"[{character}]" if character in "*?[" else character for character in str(path))


def create_table(connection: duckdb.DuckDBPyConnection, name: str, table: pa.Table) -> None:
    """Create the table ``name`` from an Arrow table."""
    connection.register("new_rows", table)
    connection.execute(f'CREATE TABLE "{name}" AS FROM new_rows')
    connection.unregister("new_rows")


@contextmanager
def _limited(what: str, memory_limit_mb: int, tmp_limit_mb: int, remedy: str) -> Iterator[None]:
    try:
        yield
    except duckdb.OutOfMemoryException as error:
        limits = f"{memory_limit_mb} MB of memory and {tmp_limit_mb} MB of temporary disk"
        raise ResourceLimitError(
            f"{what} needs more than its limits, {limits}: {_first_line(error)}; {remedy}"
        ) from error
    except duckdb.IOException as error:
        if os.strerror(errno.EMFILE) not in str(error):
            raise
        most = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        raise ResourceLimitError(
            f"{what} needs more than the {most} files that this process may have open: {_first_line(error)}; raise "
            "that with `ulimit -n`, or merge small parts with `simic lake compact`"
        ) from error


def _first_line(error: duckdb.Error) -> str:
    """Return the message without DuckDB's advice, which is about settings that users cannot change."""
    return str(error).partition("\n")[0].rstrip(".")


def _make(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise TransientError(f"cannot make {folder}: {error.strerror or error}; check space and permissions") from error


@contextmanager
def _opened(
    name: str,
    tmp: Path,
    memory_limit_mb: int,
    threads: int,
    tmp_limit_mb: int,
    *,
    is_read_only: bool = False,
) -> Iterator[duckdb.DuckDBPyConnection]:
    config: dict[str, str | bool | int | float | list[str]] = {
        **_OFFLINE,
        "memory_limit": f"{memory_limit_mb}MB",
        "threads": str(threads),
        "temp_directory": str(tmp),
    }
    try:
        connection = duckdb.connect(name, read_only=is_read_only, config=config)
    except duckdb.IOException as error:
        raise TransientError(f"cannot open {name}: {error}") from error
    except duckdb.OutOfMemoryException:
        raise
    except duckdb.Error as error:
        raise IntegrityError(f"{name} is not a DuckDB file: {error}") from error
    try:
        # DuckDB would draw its progress bar over Simic's.
        connection.execute("SET enable_progress_bar = false")
        connection.execute("SET TimeZone = 'UTC'")
        # Passed to `connect`, this limit is shown as set, but DuckDB 2.0 does not apply it.
        connection.execute(f"SET max_temp_directory_size = '{tmp_limit_mb}MB'")
        yield connection
    finally:
        connection.close()
