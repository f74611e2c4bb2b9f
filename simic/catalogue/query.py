"""The catalogue: a temporary DuckDB file of views over everything a home holds, and queries on it.

Parquet files and ledgers are the only source of data. The catalogue is rebuilt from them in a temporary file and
renamed into place before every query, so queries never wait for a writer and never see stale views.
"""

from __future__ import annotations

import itertools
import os
import re
import shutil
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, nullcontext
from importlib.resources import files
from pathlib import Path
from typing import IO, Any, NamedTuple

import duckdb
import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]
from duckdb.sqltypes import DuckDBPyType

from simic.catalogue.plain_values import Reading, inner_types, plain_value, reading_of
from simic.catalogue.relations import PARTS, create_relations, readable_folders
from simic.contracts.errors import ConfigError, IntegrityError, TransientError
from simic.lake.duck import connect, sandbox
from simic.lake.duck_views import attach_parts, reading_parts
from simic.lake.lake import Lake, open_lake
from simic.runtime.files import scratch_dir
from simic.runtime.home import Home

__all__ = [
    "THREADS",
    "View",
    "answer",
    "build_catalogue",
    "create_views",
    "load_views",
    "open_catalogue",
    "query",
    "stream",
    "write_parquet",
]


_MEMORY_LIMIT_MB = 1024
_BATCH_ROWS = 8192
"""Rows of a batch and of a row group, small enough that wide rows need little memory."""
_LACKED_BY_PARQUET = frozenset({"uhugeint", "time with time zone", "bit", "bignum", "interval", "union"})
"""Types that Parquet lacks. Of most, other values would be written without an error: wrapped, or as bytes."""
_BROKEN_RECEIPT = "Malformed JSON in file"
_VIEWS_HINT = (
    "\n`SHOW TABLES` lists the views, `DESCRIBE episodes` the columns of one, and docs/schema.md their meaning."
)
"""What to do about a table or column that does not exist."""
_UNKNOWN_NAMES = ("Table with name", "Referenced column", "does not have a column named")
THREADS = 2
"""Threads of DuckDB, for the catalogue and for a query."""


def build_catalogue(home: Home) -> Lake:
    """Rebuild the catalogue and return its lake; raise IntegrityError for a damaged ledger or manifest."""
    try:
        with scratch_dir(home, "catalogue-", is_plain=True) as folder:
            return _publish(home, folder)
    except OSError as error:
        raise _unwritten(error) from error


def open_catalogue(home: Home, tmp: Path) -> tuple[Lake, Path]:
    """Yield the lake and its catalogue, which stays in ``tmp`` if the home is read-only. Raises likewise."""
    try:
        if os.access(home.data, os.W_OK | os.X_OK):
            return _publish(home, tmp), home.catalogue
        return _build(home, tmp)
    except OSError as error:
        raise _unwritten(error) from error


def _publish(home: Home, tmp: Path) -> Lake:
    lake, built = _build(home, tmp)
    unfinished = home.tmp / f"{tmp.name}.duckdb"
    shutil.move(built, unfinished)  # a rename, unless the folder is on another file system
    unfinished.replace(home.catalogue)
    return lake


def _unwritten(error: OSError) -> TransientError:
    return TransientError(f"cannot write the catalogue: {error.strerror or error}; check space")


def _build(home: Home, folder: Path) -> tuple[Lake, Path]:
    """Build the catalogue as a file in ``folder``; return the file and the lake it shows."""
    lake, built = open_lake(home), folder / home.catalogue.name
    try:
        with connect(built, tmp=folder, memory_limit_mb=_MEMORY_LIMIT_MB, threads=THREADS) as connection:
            connection.execute("BEGIN")  # one commit for all views, so one fsync
            _create_views(connection, lake)
            _write(connection)
    except duckdb.Error as error:
        raise IntegrityError(f"a file that the views show cannot be read: {error}") from error
    return lake, built


def _write(connection: duckdb.DuckDBPyConnection) -> None:
    """Write the file explicitly: closing writes it too, but hides a failure, and the catalogue would be empty."""
    try:
        connection.execute("COMMIT")
        connection.execute("CHECKPOINT")
    except duckdb.OutOfMemoryException:
        raise
    except duckdb.Error as error:
        raise TransientError(f"cannot write the catalogue: {error}; check space") from error


def create_views(connection: duckdb.DuckDBPyConnection, home: Home) -> None:
    """Create every view over what the home holds; missing files give empty views."""
    _create_views(connection, open_lake(home))


def _create_views(connection: duckdb.DuckDBPyConnection, lake: Lake) -> None:
    create_relations(connection, lake)
    for view in load_views():
        connection.execute(f'CREATE VIEW "{view.name}" AS\n{view.sql}')


def query(
    home: Home, sql: str, limit: int | None = None, parameters: Mapping[str, object] | None = None
) -> list[dict[str, Any]]:
    """Return at most ``limit`` rows of one SELECT over the views as plain JSON objects; raises as ``stream``."""
    with closing(stream(home, sql, parameters)) as rows:
        return list(itertools.islice(rows, limit))


def stream(
    home: Home, sql: str, parameters: Mapping[str, object] | None = None
) -> Generator[dict[str, Any], None, None]:
    """Yield the same row by row, in memory that does not grow with their number; close it when done.

    The query runs in this process, where only DuckDB's own limits bound its memory and nothing bounds its time, so it
    is for Simic's own SQL. Queries of users run in ``simic.catalogue.query_process``.
    """
    with scratch_dir(home, "query-", is_plain=True) as tmp:
        lake, catalogue = open_catalogue(home, tmp)
        yield from answer(lake, catalogue, sql, tmp, _MEMORY_LIMIT_MB, parameters)


def answer(
    lake: Lake,
    catalogue: Path,
    sql: str,
    tmp: Path,
    memory_mb: int,
    parameters: Mapping[str, object] | None = None,
    on_columns: Callable[[Sequence[str]], object] | None = None,
) -> Iterator[dict[str, Any]]:
    """Yield the rows of one SELECT over the views of ``catalogue``, which shows ``lake``; it spills to ``tmp``.

    The query runs read-only and without access to other files or the network.

    Args:
        lake: lake that the catalogue shows.
        catalogue: DuckDB file with the views.
        sql: one SELECT.
        tmp: folder for temporary files.
        memory_mb: memory of DuckDB; it may spill eight times as much to ``tmp``.
        parameters: values of the names that ``sql`` has after a dollar sign; for Simic's own SQL, whose columns have
            values that Python can hold.
        on_columns: receives the names of the columns before the first row.

    Raises:
        ConfigError: SQL that is wrong or does more than read; the message is DuckDB's own.
        IntegrityError: a file that a view reads is damaged.
        ResourceLimitError: the query needs more memory or disk.
        TransientError: a file was removed during the query.
    """
    with _sandboxed(lake, catalogue, sql, tmp, memory_mb) as connection:
        if parameters:
            names = _unique([column[0] for column in connection.execute(sql, parameters).description or []])
            readings = [Reading(None, plain_value)] * len(names)
        else:
            bound = connection.sql(sql)  # binds without executing, so that errors of binding show the SQL as it is
            names, readings = _unique(bound.columns), [reading_of(kind) for kind in bound.types]
        with _without_place() if _has_cast(readings) else nullcontext():
            if not parameters:
                connection.execute(_cast(sql, readings))
            if on_columns is not None:
                on_columns(names)
            for row in _rows(connection):
                values = (reading.convert(value) for reading, value in zip(readings, row, strict=True))
                yield dict(zip(names, values, strict=True))


def _cast(sql: str, readings: Sequence[Reading]) -> str:
    """Return ``sql`` with the casts of the readings; unchanged where there is none."""
    if not _has_cast(readings):
        return sql
    names = [f"c{number}" for number in range(len(readings))]
    columns = (
        name if reading.cast is None else f"CAST({name} AS {reading.cast})"
        for name, reading in zip(names, readings, strict=True)
    )
    text = sql.replace("'", "''")
    return f"SELECT {', '.join(columns)} FROM query('{text}') AS answer({', '.join(names)})"  # noqa: S608


def _has_cast(readings: Sequence[Reading]) -> bool:
    return any(reading.cast is not None for reading in readings)


@contextmanager
def _without_place() -> Iterator[None]:
    """Leave out where in the SQL an error is: DuckDB would show the casts there, and not what was asked."""
    try:
        yield
    except duckdb.Error as error:
        raise type(error)(str(error).partition("\n\nLINE ")[0]) from error


def write_parquet(
    lake: Lake, catalogue: Path, sql: str, tmp: Path, memory_mb: int, file: IO[bytes], limit: int | None = None
) -> int:
    """Write the rows of one SELECT, ``limit`` at most, to ``file`` as Parquet and return their number.

    The arguments and errors are those of ``answer``; a column whose type Parquet lacks is a ConfigError.
    """
    with _sandboxed(lake, catalogue, sql, tmp, memory_mb) as connection:
        bound = connection.sql(sql)
        names = _unique(bound.columns)
        for name, kind in zip(names, bound.types, strict=True):
            if _is_lacked_by_parquet(kind):
                raise ConfigError(f"column {name} has type {kind}, which Parquet lacks; cast it, as in {name}::VARCHAR")
        reader = bound.to_arrow_reader(_BATCH_ROWS)
        schema = pa.schema([field.with_name(name) for name, field in zip(names, reader.schema, strict=True)])
        count = 0
        try:
            with pq.ParquetWriter(file, schema, compression="zstd") as writer:
                for batch in _batches(reader):
                    kept = batch if limit is None else batch.slice(0, limit - count)
                    writer.write_batch(pa.RecordBatch.from_arrays(kept.columns, schema=schema))
                    count += kept.num_rows
                    if count == limit:
                        break
        except pa.ArrowInvalid as error:  # an infinite TIMESTAMP_S, or the map of no pairs, whose keys have no type
            raise ConfigError(
                f"Parquet has no place for a value: {error}; cast its column, as in x::VARCHAR"
            ) from error
    return count


def _batches(reader: pa.RecordBatchReader) -> Iterator[pa.RecordBatch]:
    """Yield the batches; an error of the query, which Arrow raises as OSError, is raised as DuckDB's own."""
    try:
        yield from reader
    except (OSError, pa.ArrowException) as error:
        kind, _, _ = str(error).partition(":")
        kinds = {"Out of Memory Error": duckdb.OutOfMemoryException, "IO Error": duckdb.IOException}
        raise kinds.get(kind, duckdb.Error)(str(error)) from error


def _is_lacked_by_parquet(kind: DuckDBPyType) -> bool:
    """Return whether Parquet lacks the type, or one that is part of it."""
    return kind.id in _LACKED_BY_PARQUET or any(map(_is_lacked_by_parquet, inner_types(kind)))


@contextmanager
def _sandboxed(lake: Lake, catalogue: Path, sql: str, tmp: Path, memory_mb: int) -> Iterator[duckdb.DuckDBPyConnection]:
    """Yield a read-only connection after a check that ``sql`` is one SELECT; errors are those of ``answer``."""
    _refuse_other_than_text(sql)
    folders = readable_folders(lake.home)
    try:
        with (
            sandbox(catalogue, readable=folders, tmp=tmp, memory_limit_mb=memory_mb, threads=THREADS) as connection,
            reading_parts(lake),
        ):
            attach_parts(connection, PARTS, lake)
            _refuse_other_than_select(connection, sql)
            yield connection
    except duckdb.IOException as error:
        raise TransientError(f"a file was removed while the query read it: {error}; try again") from error
    except duckdb.Error as error:
        if _BROKEN_RECEIPT in str(error):
            raise IntegrityError(f"a file that the views show cannot be read: {error}") from error
        hint = _VIEWS_HINT if any(words in str(error) for words in _UNKNOWN_NAMES) else ""
        raise ConfigError(f"the query failed: {error}{hint}") from error


def _refuse_other_than_text(sql: str) -> None:
    """Raise ConfigError for text that is not UTF-8: Python represents such bytes of the command line as surrogates."""
    try:
        sql.encode()
    except UnicodeEncodeError as error:
        where = f"character {error.start + 1} of {len(sql)}"
        raise ConfigError(f"the query is not UTF-8: {where} is a byte that is not valid UTF-8") from error


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
    """Rename ``a, a`` to ``a, a_1``, so that every column stays visible."""
    unique: list[str] = []
    for name in names:
        free, number = name, 0
        while free in unique:
            number += 1
            free = f"{name}_{number}"
        unique.append(free)
    return unique


_FILE = re.compile(r"\d{2}_([a-z_]+)\.sql")
_HEADER = re.compile(r"-- (grain|key|inputs): (.+)")
_COLUMN = re.compile(r"-- column (\w+): (.+)")


class View(NamedTuple):
    """One SQL file."""

    name: str
    meaning: str
    grain: str
    key: str
    columns: dict[str, str]
    """Meaning by column; empty if the columns are those of the contract."""
    sql: str


def load_views() -> list[View]:
    """Return all views, in an order in which each uses only earlier ones."""
    entries = sorted(files("simic.catalogue").joinpath("views").iterdir(), key=lambda entry: entry.name)
    return [_parse(match[1], entry.read_text("utf-8")) for entry in entries if (match := _FILE.fullmatch(entry.name))]


def _parse(name: str, sql: str) -> View:
    comments = [line for line in sql.splitlines() if line.startswith("--")]
    facts = {match[1]: match[2] for line in comments if (match := _HEADER.fullmatch(line))}
    columns = {match[1]: match[2] for line in comments if (match := _COLUMN.fullmatch(line))}
    meaning = " ".join(line[3:] for line in comments if not _HEADER.fullmatch(line) and not _COLUMN.fullmatch(line))
    return View(name, meaning, facts["grain"], facts["key"], columns, sql)
