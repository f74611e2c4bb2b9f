"""Deduplication: an index of the ids of all landed reports, including dropped ones."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import duckdb
import pyarrow as pa  # type: ignore[import-untyped]

from simic.contracts.errors import IntegrityError
from simic.lake.duck import connect, exactly

__all__ = ["DedupIndex", "FirstSeen", "open_dedup_index"]

_MEMORY_LIMIT_MB = 256
_THREADS = 1


class FirstSeen(NamedTuple):
    """Content and position of the report that landed first under an id."""

    content_digest: str
    source: str
    line: int


class DedupIndex:
    """A 64-bit hash of every id and the number of its part; hits are confirmed by reading the part.

    The table takes twelve bytes per report in DuckDB, which spills to disk beyond its memory limit, so memory is
    bounded. A look-up scans the table, about 6 ms per million reports and batch.
    """

    def __init__(self, connection: duckdb.DuckDBPyConnection, parts: Iterable[Path]) -> None:
        self._connection = connection
        self._parts: list[str] = []
        connection.execute("CREATE TABLE seen (key UBIGINT NOT NULL, part INTEGER NOT NULL)")
        self.add(parts)

    def add(self, parts: Iterable[Path]) -> None:
        """Add the ids of newly committed parts. Raises IntegrityError for a file that cannot be read."""
        paths = list(parts)
        new = [exactly(path) for path in paths]
        if new:
            try:
                self._connection.execute(
                    "INSERT INTO seen SELECT hash(report_id), file_index + $known "
                    "FROM read_parquet($new, hive_partitioning = false)",
                    {"known": len(self._parts), "new": new},
                )
            except duckdb.OutOfMemoryException:
                raise  # the limit was reached; the files may be intact
            except duckdb.Error:
                self._raise_for_unreadable(paths)
                raise  # every file can be read, so the cause lies elsewhere, such as a full disk
            self._parts += new

    def _raise_for_unreadable(self, paths: Iterable[Path]) -> None:
        """Raise IntegrityError for the first file whose ids cannot be read."""
        for path in paths:
            try:
                self._connection.execute(
                    "SELECT max(hash(report_id)) FROM read_parquet($path, hive_partitioning = false)",
                    {"path": exactly(path)},
                )
            except duckdb.OutOfMemoryException:
                raise
            except duckdb.Error as error:
                raise IntegrityError(
                    f"{path}: expected the ids of landed reports, found what cannot be read "
                    f"({str(error).partition(chr(10))[0]}); see `simic doctor --deep`"
                ) from error

    def find(self, report_ids: Sequence[str]) -> dict[str, FirstSeen]:
        """Return content and position of the first report for each given id that landed."""
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
        return {report_id: FirstSeen(digest, source, line) for report_id, digest, source, line in rows}


@contextmanager
def open_dedup_index(parts: Iterable[Path], tmp: Path) -> Iterator[DedupIndex]:
    """Open the index over committed parts and files of tombstones; DuckDB spills into ``tmp``."""
    with connect(tmp=tmp, memory_limit_mb=_MEMORY_LIMIT_MB, threads=_THREADS) as connection:
        yield DedupIndex(connection, parts)
