"""Conversion of accepted reports to Arrow columns."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa  # type: ignore[import-untyped]

from simic.contracts.errors import ContractError
from simic.lake.duck import connect
from simic.lake.schema import LANDED_SCHEMA, REPORT_SCHEMA

__all__ = ["AcceptedReports", "ArrowReader", "categorical_columns", "open_arrow_reader"]

_MEMORY_LIMIT_MB = 1024
_THREADS = 1
_SLICE_BYTES = 1024 * 1024
"""Bytes of reports read at once. DuckDB's reader takes about twenty times the bytes of reports with many edges, and
slices that fit into the processor's cache are read 1.5 times as fast."""

_DATA = pa.schema([("data", pa.string())])
_UNIQUE = frozenset({"report_id", "command_id", "content_digest"})
_DUCK_TYPES = {
    pa.bool_(): "BOOLEAN",
    pa.int64(): "BIGINT",
    pa.float64(): "DOUBLE",
    pa.string(): "VARCHAR",
    pa.timestamp("us", tz="UTC"): "TIMESTAMPTZ",
}


@dataclass
class AcceptedReports:
    """Accepted reports and their origin, as lists of equal length, so that a row costs no object."""

    report_ids: list[str] = field(default_factory=list)
    content_digests: list[str] = field(default_factory=list)
    data: list[bytes] = field(default_factory=list)
    """JSON in the contract's canonical form."""
    sources: list[str] = field(default_factory=list)
    lines: list[int] = field(default_factory=list)
    correlation_ids: list[str | None] = field(default_factory=list)
    """Those of the envelopes in which the lines travelled, if they did."""

    def __len__(self) -> int:
        return len(self.data)

    def add(
        self,
        report_id: str,
        content_digest: str,
        data: bytes,
        source: str,
        line: int,
        correlation_id: str | None = None,
    ) -> None:
        """Append a report."""
        self.report_ids.append(report_id)
        self.content_digests.append(content_digest)
        self.data.append(data)
        self.sources.append(source)
        self.lines.append(line)
        self.correlation_ids.append(correlation_id)

    def take(self, rows: Sequence[int]) -> AcceptedReports:
        """Return the reports at these rows, in this order."""
        columns = (self.report_ids, self.content_digests, self.data, self.sources, self.lines, self.correlation_ids)
        return AcceptedReports(*([column[row] for row in rows] for column in columns))  # type: ignore[arg-type]


class ArrowReader:
    """Reads reports in canonical form into the columns of the lake.

    Raw lines could have one meaning to the contract and another to DuckDB's reader (numbers in quotes, repeated
    fields). From canonical forms both read the same values, to the last bit.
    """

    def __init__(self, connection: duckdb.DuckDBPyConnection) -> None:
        structure = json.dumps({field.name: _structure(field.type) for field in REPORT_SCHEMA})
        self._slices = _Slices()
        connection.register("landings", self._slices)
        # Not as a parameter: with one, DuckDB holds all rows in its own format before Arrow gets the first.
        self._reader = connection.view("landings").project(f"unnest(from_json_strict(data, '{structure}'))")

    def table(self, rows: AcceptedReports, landed_at: datetime) -> pa.Table:
        """Return the columns of ``LANDED_SCHEMA``, one row per report, in order."""
        try:
            reports = self._reports(rows.data)
        except duckdb.OutOfMemoryException:
            raise  # the limit was reached; the reports may be valid
        except (duckdb.Error, pa.ArrowInvalid, ValueError) as error:
            raise ContractError(f"{len(rows)} canonical reports are not columns of the lake: {error}") from error
        if reports.num_rows != len(rows):
            raise ContractError(f"expected {len(rows)} rows, found {reports.num_rows}")
        moment = landed_at.astimezone(UTC)
        landing = [
            pa.array(rows.content_digests, pa.string()),
            pa.array(rows.sources, pa.string()),
            pa.array(rows.lines, pa.int64()),
            pa.array(rows.correlation_ids, pa.string()),
            pa.repeat(pa.scalar(moment, pa.timestamp("us", tz="UTC")), len(rows)),
            pa.repeat(pa.scalar(moment.date(), pa.date32()), len(rows)),
        ]
        landed = pa.Table.from_arrays([*reports.columns, *landing], schema=LANDED_SCHEMA)
        landed.validate()
        return landed

    def _reports(self, data: Sequence[bytes]) -> pa.Table:
        """Return the columns of ``REPORT_SCHEMA``; halves the input if it does not fit the memory limit."""
        try:
            return self._read(data)
        except duckdb.OutOfMemoryException:
            if len(data) == 1:
                raise
            middle = len(data) // 2
        return pa.concat_tables([self._reports(data[:middle]), self._reports(data[middle:])])

    def _read(self, data: Sequence[bytes]) -> pa.Table:
        self._slices.data = data
        try:
            return self._reader.to_arrow_table().cast(REPORT_SCHEMA)
        finally:
            self._slices.data = ()


class _Slices:
    """Stream that DuckDB reads anew with each query: texts as one column, slice by slice."""

    data: Sequence[bytes] = ()

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        batches = (pa.record_batch([pa.array(rows, pa.string())], schema=_DATA) for rows in _slices(self.data))
        return pa.RecordBatchReader.from_batches(_DATA, batches).__arrow_c_stream__(requested_schema)


@contextmanager
def open_arrow_reader(tmp: Path) -> Iterator[ArrowReader]:
    """Open a reader with a memory limit of its own."""
    with connect(tmp=tmp, memory_limit_mb=_MEMORY_LIMIT_MB, threads=_THREADS) as connection:
        connection.execute("SET preserve_insertion_order = true")
        yield ArrowReader(connection)


def _slices(data: Sequence[bytes]) -> Iterator[Sequence[bytes]]:
    """Yield slices in order; each has at least one row and ends with the row that fills it."""
    start = size_bytes = 0
    for row, item in enumerate(data, 1):
        size_bytes += len(item)
        if size_bytes >= _SLICE_BYTES or row == len(data):
            yield data[start:row]
            start, size_bytes = row, 0


def categorical_columns(schema: pa.Schema) -> list[str]:
    """Return the Parquet paths of texts that repeat, which get a dictionary; numbers and unique ids do not."""
    return [
        path
        for field in schema
        for path, kind in _leaves(field.name, field.type)
        if pa.types.is_string(kind) and path not in _UNIQUE
    ]


def _leaves(path: str, kind: pa.DataType) -> Iterator[tuple[str, pa.DataType]]:
    if pa.types.is_struct(kind):
        for child in kind:
            yield from _leaves(f"{path}.{child.name}", child.type)
    elif pa.types.is_list(kind):
        yield from _leaves(f"{path}.list.element", kind.value_type)
    else:
        yield path, kind


def _structure(kind: pa.DataType) -> Any:
    """Return the type in the notation of ``from_json_strict``."""
    if pa.types.is_list(kind):
        return [_structure(kind.value_type)]
    if pa.types.is_struct(kind):
        return {field.name: _structure(field.type) for field in kind}
    if kind not in _DUCK_TYPES:
        raise ContractError(f"a report cannot hold {kind}: there is no DuckDB type for it")
    return _DUCK_TYPES[kind]
