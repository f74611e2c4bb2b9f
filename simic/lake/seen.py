"""Which reports have landed: the one index that recognises a report told twice."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import duckdb
import pyarrow as pa  # type: ignore[import-untyped]

from simic.contracts.errors import IntegrityError
from simic.lake.duck import connect

__all__ = ["Landed", "SeenReports", "open_seen"]

_MEMORY_LIMIT_MB = 256
_THREADS = 1


class Landed(NamedTuple):
    """Where a report landed first."""

    content_digest: str
    source: str
    line: int


class SeenReports:
    """A 64-bit hash of every id in committed parts, and the part it is in; a hit is confirmed in the part itself.

    Twelve bytes a report in DuckDB, which spills to disk beyond its memory limit, so memory does not grow with what
    has landed. A look-up scans them all, about 6 ms per million reports and batch.
    """

    def __init__(self, connection: duckdb.DuckDBPyConnection, parts: Iterable[Path]) -> None:
        self._connection = connection
        self._parts: list[str] = []
        connection.execute("CREATE TABLE seen (key UBIGINT NOT NULL, part INTEGER NOT NULL)")
        self.add(parts)

    def add(self, parts: Iterable[Path]) -> None:
        """Takes newly committed parts into account."""
        new = [str(path) for path in parts]
        if new:
            try:
                self._connection.execute(
                    "INSERT INTO seen SELECT hash(report_id), file_index + $known "
                    "FROM read_parquet($new, hive_partitioning = false)",
                    {"known": len(self._parts), "new": new},
                )
            except duckdb.Error:
                self._blame(new)
                raise  # every file can be read, so it was something else: no room to spill, say
            self._parts += new

    def _blame(self, paths: Iterable[str]) -> None:
        """Raises IntegrityError that names the first file whose ids cannot be read."""
        for path in paths:
            try:
                self._connection.execute(
                    "SELECT max(hash(report_id)) FROM read_parquet($path, hive_partitioning = false)", {"path": path}
                )
            except duckdb.Error as error:
                raise IntegrityError(
                    f"{path}: expected the ids of landed reports, found what cannot be read "
                    f"({str(error).partition(chr(10))[0]}); see `simic doctor --deep`"
                ) from error

    def find(self, report_ids: Sequence[str]) -> dict[str, Landed]:
        """Those of the given ids that have landed, and where."""
        if not self._parts or not report_ids:
            return {}
        self._connection.register("batch", pa.table({"report_id": pa.array(report_ids, pa.string())}))
        try:
            hits = self._connection.execute(
                "SELECT DISTINCT part FROM seen WHERE key IN (SELECT hash(report_id) FROM batch) ORDER BY part"
            ).fetchall()
            if not hits:
                return {}
            rows = self._connection.execute(
                "SELECT report_id, content_digest, source, line "
                "FROM read_parquet($parts, hive_partitioning = false) WHERE report_id IN (SELECT report_id FROM batch)",
                {"parts": [self._parts[number] for (number,) in hits]},
            ).fetchall()
        finally:
            self._connection.unregister("batch")
        return {report_id: Landed(digest, source, line) for report_id, digest, source, line in rows}


@contextmanager
def open_seen(parts: Iterable[Path], tmp: Path) -> Iterator[SeenReports]:
    """The index over committed parts; spills into ``tmp``."""
    with connect(tmp=tmp, memory_limit_mb=_MEMORY_LIMIT_MB, threads=_THREADS) as connection:
        yield SeenReports(connection, parts)
