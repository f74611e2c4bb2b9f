"""DuckDB views over the live parts: DuckDB reads local Parquet itself and other stores through Arrow.

Rows of an earlier contract have NULL in columns that were added since. DuckDB reads only the columns and row groups
that a query needs, and no extension is loaded.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import duckdb
import pyarrow as pa  # type: ignore[import-untyped]

from simic.contracts.errors import IntegrityError, TransientError
from simic.lake.duck import create_parquet_view, create_table
from simic.lake.evolution import older_schemas
from simic.lake.lake import Lake
from simic.lake.schema import LANDED_SCHEMA
from simic.lake.store import ArrowParts, LocalParts

__all__ = ["attach_parts", "create_evolved_view", "create_parts_view", "reading_parts"]


def create_parts_view(
    connection: duckdb.DuckDBPyConnection,
    name: str,
    lake: Lake,
    schema: pa.Schema = LANDED_SCHEMA,
    *,
    with_row_ids: bool = False,
) -> None:
    """Create the view ``name`` with the rows of all live parts, as columns of ``schema``.

    ``with_row_ids`` adds ``row_id`` for a lake on disk: the part's index among the live ones, and the row's index in
    it. Raises ContractError if a part cannot be read under ``schema``. A view stored in a database file is complete for
    a lake on disk; for another store each connection calls ``attach_parts`` again.
    """
    older = older_schemas(lake.store, lake.parts, schema)
    if not isinstance(lake.store, LocalParts):
        attach_parts(connection, name, lake, schema)
        return
    paths = [lake.store.path(part.part) for part in lake.parts]
    create = create_evolved_view if older else create_parquet_view
    create(connection, name, paths, schema, with_row_ids=with_row_ids)


def create_evolved_view(
    connection: duckdb.DuckDBPyConnection,
    name: str,
    paths: Sequence[Path],
    schema: pa.Schema,
    *,
    with_row_ids: bool = False,
) -> None:
    """Create a view over parts, some of which may be of earlier contracts, as columns of ``schema``."""
    as_written, empty = f"{name}_as_written", f"{name}_without_rows"
    create_parquet_view(connection, as_written, paths, schema, with_row_ids=with_row_ids)
    create_table(connection, empty, schema.empty_table())
    types = {row[0]: row[1] for row in connection.execute(f'DESCRIBE "{empty}"').fetchall()}
    written = {row[0] for row in connection.execute(f'DESCRIBE "{as_written}"').fetchall()}
    columns = ", ".join(
        f'"{column}"::{kind} AS "{column}"' if column in written else f'NULL::{kind} AS "{column}"'
        for column, kind in types.items()
    )
    row_id = ", row_id" if with_row_ids else ""
    connection.execute(f'CREATE VIEW "{name}" AS SELECT {columns}{row_id} FROM "{as_written}"')  # noqa: S608
    connection.execute(f'DROP TABLE "{empty}"')


def attach_parts(
    connection: duckdb.DuckDBPyConnection, name: str, lake: Lake, schema: pa.Schema = LANDED_SCHEMA
) -> None:
    """Register ``name`` on this connection to read the parts through Arrow; does nothing for a local lake."""
    if not isinstance(lake.store, ArrowParts):
        return
    if not lake.parts:
        connection.register(name, schema.empty_table())
        return
    from pyarrow import dataset as arrow_dataset  # it loads pandas, which a lake on disk does not need

    files = [part.part for part in lake.parts]
    parts = arrow_dataset.dataset(files, schema=schema, format="parquet", filesystem=lake.store.filesystem)
    connection.register(name, parts)


@contextmanager
def reading_parts(lake: Lake) -> Iterator[None]:
    """Translate failures to read parts through Arrow: IntegrityError for a part, TransientError for the store."""
    try:
        yield
    except duckdb.InvalidInputException as error:
        text = str(error)
        if "reading the stream" not in text:
            raise
        if "Path does not exist" in text:
            raise IntegrityError(f"a part that the ledger lists cannot be read: {text}; see `simic doctor`") from error
        raise TransientError(f"the store {lake.store.place} does not answer: {text}; try again when it does") from error
