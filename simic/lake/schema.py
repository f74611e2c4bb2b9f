"""Arrow schemas, derived from contracts.

Nested contracts become structs, lists become lists, enumerations strings, times ``timestamp[us, UTC]``. Top-level
columns that a contract requires are NOT NULL. Everything inside structs is nullable in Arrow, even if the contract
requires it, because the JSON reader refuses required children of an absent struct.
"""

from __future__ import annotations

import types
from datetime import datetime
from enum import Enum
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import pyarrow as pa  # type: ignore[import-untyped]
from pydantic import AwareDatetime, BaseModel

from simic.contracts.errors import ContractError
from simic.contracts.field_report import FieldReport

__all__ = ["LANDED_SCHEMA", "LANDING_COLUMNS", "REPORT_SCHEMA", "arrow_schema", "arrow_type", "plain_annotation"]

_SCALARS: dict[Any, pa.DataType] = {
    bool: pa.bool_(),
    int: pa.int64(),
    float: pa.float64(),
    str: pa.string(),
    bytes: pa.binary(),
    datetime: pa.timestamp("us", tz="UTC"),
    AwareDatetime: pa.timestamp("us", tz="UTC"),
}


def arrow_schema(model: type[BaseModel]) -> pa.Schema:
    """Return a schema with one column per field of the contract, in its order."""
    fields = []
    for name, info in model.model_fields.items():
        annotation, is_nullable = plain_annotation(info.annotation)
        fields.append(pa.field(name, arrow_type(annotation), nullable=is_nullable))
    return pa.schema(fields)


def arrow_type(annotation: Any) -> pa.DataType:
    """Return the Arrow type of an annotation without its constraints. Raises ContractError if there is none."""
    plain, _ = plain_annotation(annotation)
    origin, arguments = get_origin(plain), get_args(plain)
    if origin in (list, tuple) and arguments and len(set(arguments)) == 1:
        return pa.list_(arrow_type(arguments[0]))
    if origin is dict and issubclass(plain_annotation(arguments[0])[0], str):  # a text, an enumeration of texts
        return pa.map_(pa.string(), arrow_type(arguments[1]))
    if origin is Literal and len({type(choice) for choice in arguments}) == 1:
        return arrow_type(type(arguments[0]))
    if plain in _SCALARS:
        return _SCALARS[plain]
    if isinstance(plain, type) and issubclass(plain, Enum):
        return pa.string()
    if isinstance(plain, type) and issubclass(plain, BaseModel):
        return pa.struct([pa.field(name, arrow_type(info.annotation)) for name, info in plain.model_fields.items()])
    raise ContractError(f"{annotation} has no Arrow type")


def plain_annotation(annotation: Any) -> tuple[Any, bool]:
    """Return the annotation without ``Annotated`` and ``None``, and whether it allowed None."""
    if get_origin(annotation) is Annotated:
        return plain_annotation(get_args(annotation)[0])
    if get_origin(annotation) in (Union, types.UnionType):
        members = [member for member in get_args(annotation) if member is not type(None)]
        if len(members) != 1:
            raise ContractError(f"{annotation}: a column holds one type or null")
        inner, _ = plain_annotation(members[0])
        return inner, len(members) < len(get_args(annotation))
    return annotation, False


REPORT_SCHEMA = arrow_schema(FieldReport)
"""The wire columns of a landed report."""

LANDING_COLUMNS: dict[str, tuple[pa.Field, str]] = {
    "content_digest": (
        pa.field("content_digest", pa.string(), nullable=False),
        "SHA-256 of the report's canonical form without `issued_at`, and without the fields of a branch, of a trial "
        "and of later contracts' measurements where they are null: equal for a report that is sent again.",
    ),
    "source": (pa.field("source", pa.string(), nullable=False), "Delivery that contained the report."),
    "line": (pa.field("line", pa.int64(), nullable=False), "Line in that delivery, from 1."),
    "correlation_id": (
        pa.field("correlation_id", pa.string()),
        "Correlation id of its envelope on the bus: the name under which its producer put it there. Null for a line "
        "that travelled without one.",
    ),
    "landed_at": (
        pa.field("landed_at", pa.timestamp("us", tz="UTC"), nullable=False),
        "Landing time of its batch.",
    ),
    "day": (pa.field("day", pa.date32(), nullable=False), "UTC day of `landed_at`."),
}
"""Columns that landing adds to each report, with their meaning."""

LANDED_SCHEMA = pa.schema([*REPORT_SCHEMA, *(field for field, _ in LANDING_COLUMNS.values())])
"""The columns of a part."""
