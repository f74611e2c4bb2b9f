"""Which reports have landed: the one index that recognises a report told twice."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import duckdb
import pyarrow as pa  # type: ignore[import-untyped]

from simic.lake.duck import connect

__all__ = ["Landed", "SeenReports", "open_seen"]

_MEMORY_LIMIT_MB = 1024
_THREADS = 1


class Landed(NamedTuple):
    """Where a report landed first."""

    content_digest: str
    source: str
    line: int


class SeenReports:
    """Ids of all reports in committed parts, 16 bytes each, spilling to disk beyond the memory limit."""

    def __init__(self, connection: duckdb.DuckDBPyConnection, parts: Iterable[Path]) -> None:
        self._connection = connection
        self._parts: list[str] = []
        connection.execute("CREATE TABLE seen (report_id UUID NOT NULL)")
        self.add(parts)

    def add(self, parts: Iterable[Path]) -> None:
        """Takes newly committed parts into account."""
        new = [str(path) for path in parts]
        if new:
            self._connection.execute(
                "INSERT INTO seen SELECT report_id::UUID FROM read_parquet($parts, hive_partitioning = false)",
                {"parts": new},
            )
            self._parts += new

    def find(self, report_ids: Sequence[str]) -> dict[str, Landed]:
        """Those of the given ids that have landed, and where."""
        if not self._parts:
            return {}
        self._connection.register("batch", pa.table({"report_id": pa.array(report_ids, pa.string())}))
        try:
            hits = self._connection.execute(
                "SELECT report_id FROM batch WHERE report_id::UUID IN (FROM seen)"
            ).fetchall()
            if not hits:
                return {}
            rows = self._connection.execute(
                "SELECT report_id, content_digest, source, line "
                "FROM read_parquet($parts, hive_partitioning = false) WHERE report_id IN (SELECT report_id FROM batch)",
                {"parts": self._parts},
            ).fetchall()
        finally:
            self._connection.unregister("batch")
        return {report_id: Landed(digest, source, line) for report_id, digest, source, line in rows}


@contextmanager
def open_seen(parts: Iterable[Path], tmp: Path) -> Iterator[SeenReports]:
    """The index over committed parts."""
    with connect(tmp=tmp, memory_limit_mb=_MEMORY_LIMIT_MB, threads=_THREADS) as connection:
        yield SeenReports(connection, parts)
