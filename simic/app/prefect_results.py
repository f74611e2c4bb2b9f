"""Paths of results in Prefect's records: found, and rewritten after the home was moved or copied.

Prefect stores the absolute path of each result twice: with the task's state in its database, and in the result's own
file. Simic finds a result by name in the present home, but retries and other Prefect clients follow the stored path,
and the next state of the task copies it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from simic.runtime.files import atomic_write
from simic.runtime.home import Home
from simic.runtime.sqlite_files import reading, writing

__all__ = ["StoredResult", "results_elsewhere", "rewrite_results"]

_TABLES = ("task_run_state", "flow_run_state")
_STORAGE = "/.prefect/storage/"


class StoredResult(NamedTuple):
    """A record of a result outside the home: a row of the database, or a file."""

    table: str | None
    """Table of the database; None for a file."""
    row: str
    """Id of the state, or the file's name."""
    path: str
    record: dict[str, Any]


def results_elsewhere(home: Home) -> list[StoredResult]:
    """Return the records that name an earlier location of this home; change nothing."""
    return [*_rows_elsewhere(home), *_files_elsewhere(home)]


def rewrite_results(home: Home) -> int:
    """Set all records to the present location: rows in one transaction, each file by a rename; return how many."""
    rows, files = list(_rows_elsewhere(home)), list(_files_elsewhere(home))
    if rows:
        with writing(home.prefect_database) as connection:
            for result in rows:
                record = {**result.record, "storage_key": _here(result.path, home)}
                connection.execute(
                    f'UPDATE "{result.table}" SET data = ? WHERE id = ?',  # noqa: S608 - names of ours
                    (json.dumps(record), result.row),
                )
    for result in files:
        metadata = {**result.record["metadata"], "storage_key": _here(result.path, home)}
        _replace(
            _storage(home) / result.row, json.dumps({**result.record, "metadata": metadata}, separators=(",", ":"))
        )
    return len(rows) + len(files)


def _storage(home: Home) -> Path:
    return home.prefect / "storage"


def _here(path: str, home: Home) -> str:
    return f"{_storage(home)}/{path.rpartition(_STORAGE)[2]}"


def _is_elsewhere(path: object, home: Home) -> bool:
    return isinstance(path, str) and path.startswith("/") and _STORAGE in path and path != _here(path, home)


def _rows_elsewhere(home: Home) -> Iterator[StoredResult]:
    if not home.prefect_database.exists():
        return
    with reading(home.prefect_database) as connection:
        for table in _TABLES:
            if not {"id", "data"} <= {row[1] for row in connection.execute(f'PRAGMA table_info("{table}")')}:
                continue  # another version of Prefect
            sql = f"SELECT id, data FROM \"{table}\" WHERE data LIKE '%storage_key%'"  # noqa: S608 - likewise
            for row, text in connection.execute(sql):
                record = _record(text)
                if record is not None and _is_elsewhere(record.get("storage_key"), home):
                    yield StoredResult(table, row, record["storage_key"], record)


def _files_elsewhere(home: Home) -> Iterator[StoredResult]:
    for path in sorted(_storage(home).glob("*")):
        record = _record(path.read_bytes()) if path.is_file() else None
        metadata = None if record is None else record.get("metadata")
        if record is not None and isinstance(metadata, dict) and _is_elsewhere(metadata.get("storage_key"), home):
            yield StoredResult(None, path.name, metadata["storage_key"], record)


def _record(text: str | bytes) -> dict[str, Any] | None:
    """Return a JSON object, or None for anything else, which another program wrote."""
    try:
        record = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return record if isinstance(record, dict) else None


def _replace(path: Path, text: str) -> None:
    atomic_write(path, text.encode(), durable=False, mode=path.stat().st_mode & 0o777)
