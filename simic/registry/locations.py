"""Addresses of files in MLflow's database: found, and rewritten after the home was moved or copied.

MLflow stores absolute addresses. All of them are in one database, so one transaction rewrites them.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple
from urllib.parse import unquote, urlsplit

from simic.runtime.home import Home
from simic.runtime.sqlite_files import reading, writing

__all__ = ["Location", "locations", "rewrite_locations"]

_COLUMNS = (
    ("experiments", "artifact_location"),
    ("runs", "artifact_uri"),
    ("logged_models", "artifact_location"),
    ("model_versions", "source"),
    ("model_versions", "storage_location"),
)
_DATASETS = ("datasets", "dataset_source")
_ARTIFACTS, _SNAPSHOTS = "/mlruns/artifacts", "/data/snapshots"
_DEFAULT_TAIL = "/mlruns/0"
"""Folder of MLflow's own default experiment, below the directory in which MLflow was first started."""


class Location(NamedTuple):
    """One address of a local file or directory outside the home."""

    table: str
    column: str
    row: int
    found: str
    wanted: str | None
    """The address of the same content in this home; None if the address was never one of this home."""


def locations(home: Home, database: Path | None = None) -> list[Location]:
    """Return the addresses that point outside ``home``; none without a database. Changes nothing."""
    database = database or home.mlflow_database
    if not database.exists():
        return []
    with reading(database) as connection:
        return list(_outside(connection, home))


def rewrite_locations(home: Home, database: Path | None = None) -> int:
    """Rewrite every address of an earlier location of this home, in one transaction; return how many."""
    database = database or home.mlflow_database
    outdated = [location for location in locations(home, database) if location.wanted is not None]
    if not outdated:
        return 0
    with writing(database) as connection:
        for location in outdated:
            connection.execute(
                f'UPDATE "{location.table}" SET "{location.column}" = ? WHERE rowid = ? AND "{location.column}" = ?',  # noqa: S608
                (location.wanted, location.row, location.found),
            )
    return len(outdated)


def _outside(connection: sqlite3.Connection, home: Home) -> Iterator[Location]:
    for table, column in _COLUMNS:
        for row, text in _values(connection, table, column):
            path = _local_path(text)
            if path is None or _is_below(path, home):
                continue
            new = _new_place(path, home)
            as_written = None if new is None else Path(new).as_uri() if text.startswith("file:") else new
            yield Location(table, column, row, text, as_written)
    for row, text in _values(connection, *_DATASETS):
        path = _dataset_path(text)
        _, marker, tail = (path or "").rpartition(_SNAPSHOTS)
        if path is not None and marker and not _is_below(path, home):
            yield Location(*_DATASETS, row, text, json.dumps({"uri": f"{home.snapshots}{tail}"}))


def _values(connection: sqlite3.Connection, table: str, column: str) -> list[tuple[int, str]]:
    """Yield the rows that have a value; none if this MLflow lacks the table or column."""
    if column not in {row[1] for row in connection.execute(f'PRAGMA table_info("{table}")')}:
        return []
    sql = f'SELECT rowid, "{column}" FROM "{table}" WHERE "{column}" IS NOT NULL'  # noqa: S608 - names of ours
    return connection.execute(sql).fetchall()


def _local_path(text: str) -> str | None:
    """Return the path of a ``file:`` address or of a plain path; None for any other store."""
    if text.startswith("/"):
        return text
    return unquote(urlsplit(text).path) if text.startswith("file:") else None


def _dataset_path(text: str) -> str | None:
    try:
        uri = json.loads(text)["uri"]
    except (ValueError, KeyError, TypeError):
        return None
    return uri if isinstance(uri, str) and uri.startswith("/") else None


def _is_below(path: str, home: Home) -> bool:
    return Path(path).is_relative_to(home.root)


def _new_place(path: str, home: Home) -> str | None:
    _, marker, tail = path.rpartition(_ARTIFACTS)
    if marker and tail[:1] in ("", "/"):
        return f"{home.artifacts}{tail}"
    return f"{home.artifacts}/0" if path.endswith(_DEFAULT_TAIL) else None
