"""Accepted reports as Arrow columns."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import NamedTuple

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.json as pj  # type: ignore[import-untyped]

from simic.contracts.errors import ContractViolation
from simic.lake.schema import LANDED_SCHEMA, REPORT_SCHEMA

__all__ = ["Landing", "landed_table"]


class Landing(NamedTuple):
    """One accepted report and where it came from."""

    data: bytes
    """JSON in the contract's own normal form."""
    content_digest: str
    source: str
    line: int


def landed_table(rows: Sequence[Landing], landed_at: datetime) -> pa.Table:
    """Columns of ``LANDED_SCHEMA``, one row per landing, in order.

    Reads normal forms only. Raw lines could mean one thing to the contract and another to Arrow's reader (numbers
    in quotes, fields given twice); of normal forms both read the same values, to the last bit.
    """
    lines = b"\n".join(row.data for row in rows)
    count = len(rows)
    try:
        table = pj.read_json(
            pa.BufferReader(lines),
            # One block: rows must not straddle two.
            read_options=pj.ReadOptions(use_threads=False, block_size=len(lines) + 1),
            parse_options=pj.ParseOptions(explicit_schema=REPORT_SCHEMA, unexpected_field_behavior="error"),
        )
    except pa.ArrowInvalid as error:
        raise ContractViolation(f"{count} reports in normal form are not columns of the lake: {error}") from error
    if table.num_rows != count:
        raise ContractViolation(f"expected {count} rows, found {table.num_rows}")
    moment = landed_at.astimezone(UTC)
    landing = [
        pa.array([row.content_digest for row in rows], pa.string()),
        pa.array([row.source for row in rows], pa.string()),
        pa.array([row.line for row in rows], pa.int64()),
        pa.repeat(pa.scalar(moment, pa.timestamp("us", tz="UTC")), count),
        pa.repeat(pa.scalar(moment.date(), pa.date32()), count),
    ]
    columns = [table.column(name) for name in REPORT_SCHEMA.names]
    landed = pa.Table.from_arrays([*columns, *landing], schema=LANDED_SCHEMA)
    landed.validate()
    return landed
