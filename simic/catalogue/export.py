"""Query results as CSV or Parquet files for other tools; nothing here loads DuckDB."""

from __future__ import annotations

import io
import json
import stat
from collections.abc import Iterable, Mapping
from contextlib import closing
from itertools import islice
from pathlib import Path
from typing import IO, Any

from simic.catalogue.query_process import Limits, ask, ask_parquet
from simic.contracts.errors import ConfigError
from simic.runtime.files import atomic_file, check_folder_of
from simic.runtime.home import Home

__all__ = ["export_csv", "export_parquet", "write_csv"]

_SPECIAL = frozenset(',"\r\n')


def export_csv(
    home: Home, sql: str, limits: Limits, target: Path | IO[str], *, limit: int | None = None, overwrite: bool = False
) -> int:
    """Write the rows of one SELECT as CSV (RFC 4180, UTF-8) and return their number.

    NULL is an empty field, an empty text is ``""``, and in a single column NULL is too, because a blank line is no row;
    lists, structs and maps are JSON texts, times ISO 8601.

    Args:
        home: home whose views are asked.
        sql: one SELECT.
        limits: time and memory of the query.
        target: file, which appears complete or not at all, or an open text stream.
        limit: most rows to write; None for all.
        overwrite: whether an existing file may be replaced.

    Raises:
        ConfigError: ``target`` exists and ``overwrite`` is false, or is no possible file; or as ``ask``.
        ResourceLimitError: as ``ask``.
    """
    columns: list[str] = []
    with closing(ask(home, sql, limits, columns.extend)) as rows:
        if not isinstance(target, Path):
            return write_csv(columns, islice(rows, limit), target)
        _check_target(target, overwrite=overwrite)
        with atomic_file(target, mode=_mode(target)) as file:
            sink = io.TextIOWrapper(file, "utf-8", newline="")
            try:
                count = write_csv(columns, islice(rows, limit), sink)
            finally:
                sink.detach()  # flushes; the file is closed by its owner
            _check_target(target, overwrite=overwrite)
        return count


def export_parquet(
    home: Home, sql: str, limits: Limits, target: Path, *, limit: int | None = None, overwrite: bool = False
) -> int:
    """Write the rows of one SELECT as a Parquet file and return their number; as ``export_csv``, with real types."""
    _check_target(target, overwrite=overwrite)
    with atomic_file(target, mode=_mode(target)) as file:
        count = ask_parquet(home, sql, limits, file, limit)
        _check_target(target, overwrite=overwrite)
    return count


def write_csv(columns: list[str], rows: Iterable[Mapping[str, Any]], sink: IO[str]) -> int:
    """Write a header and ``rows`` to ``sink`` and return their number.

    ``columns`` may be filled when the first row is asked for.
    """
    count, remaining = 0, iter(rows)
    first = next(remaining, None)
    sink.write(",".join(map(_field, columns)) + "\n")
    row = first
    while row is not None:
        sink.write((",".join(map(_field, row.values())) or '""') + "\n")
        count += 1
        row = next(remaining, None)
    return count


def _field(value: object) -> str:
    """One value as a CSV field."""
    if value is None:
        return ""
    if isinstance(value, str):
        is_quoted = not value or not _SPECIAL.isdisjoint(value) or value != value.strip()
        return '"' + value.replace('"', '""') + '"' if is_quoted else value
    text = json.dumps(value, ensure_ascii=False, allow_nan=False)
    return '"' + text.replace('"', '""') + '"' if isinstance(value, (list, dict)) else text


def _mode(target: Path) -> int | None:
    """Return the permissions of the file to replace; None if there is none."""
    return stat.S_IMODE(target.stat().st_mode) if target.exists() else None


def _check_target(target: Path, *, overwrite: bool) -> None:
    """Raise ConfigError unless a file may be written at ``target``."""
    check_folder_of(target)
    if target.is_dir() or (target.exists() and not target.is_file()):
        raise ConfigError(f"cannot write {target}: it exists and is not a regular file; name another")
    if (target.exists() or target.is_symlink()) and not overwrite:
        raise ConfigError(f"{target} exists; name another file, or add --overwrite to replace it")
