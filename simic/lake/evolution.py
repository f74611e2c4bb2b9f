"""Schema evolution: parts of earlier contracts are read if only optional columns were added since, refused otherwise.

The schema digest in the ledger identifies parts of another contract. Their columns are in their Parquet footers; one
footer per digest is read.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple, get_args, get_origin

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]
from pydantic import BaseModel

from simic.contracts.errors import ContractError, IntegrityError, TransientError
from simic.contracts.field_report import FieldReport
from simic.lake.log import Part
from simic.lake.parts import schema_digest
from simic.lake.schema import LANDED_SCHEMA, LANDING_COLUMNS, plain_annotation
from simic.lake.store import PartStore

__all__ = ["Difference", "differences", "older_schemas", "required_columns"]


class Difference(NamedTuple):
    """A column that prevents reading a part under the present contract."""

    column: str
    expected: str
    found: str


def required_columns(model: type[BaseModel] = FieldReport) -> frozenset[str]:
    """Return the dotted names of all fields that are never null, nested ones too; ``slots.[].stage`` is in a list."""
    return frozenset(_required(model, "")) | {
        name for name, (field, _) in LANDING_COLUMNS.items() if not field.nullable
    }


def older_schemas(
    store: PartStore,
    parts: Iterable[Part],
    schema: pa.Schema = LANDED_SCHEMA,
    required: frozenset[str] | None = None,
) -> list[pa.Schema]:
    """Return the schemas of parts that were not written under ``schema``; none for a lake of one contract.

    Raises:
        ContractError: for the first part that cannot be read under ``schema``.
    """
    current = schema_digest(schema)
    first = {part.schema_digest: part for part in reversed(list(parts)) if part.schema_digest != current}
    if not first:
        return []
    required = required_columns() if required is None else required
    schemas = []
    for part in first.values():
        older = _footer(store, part)
        if problems := differences(schema, older, required):
            text = "; ".join(f"column {name}: expected {expected}, found {it}" for name, expected, it in problems[:5])
            raise ContractError(
                f"{store.place}/{part.part} was written by {part.code_version} under a contract that this code cannot "
                f"read: {text}. Read it with that version, or drop such parts with `simic lake retain`"
            )
        schemas.append(older)
    return schemas


def differences(current: pa.Schema, older: pa.Schema, required: frozenset[str]) -> list[Difference]:
    """Return what prevents reading rows of ``older`` as rows of ``current``; empty if only nullable columns differ.

    A column that was removed since is acceptable if it was nullable. Within structs Arrow does not record that, so a
    removed field of a struct is a difference.
    """
    return list(_compare(current, older, "", required))


def _compare(current: Any, older: Any, prefix: str, required: frozenset[str]) -> Iterator[Difference]:
    known = {field.name: field for field in older}
    for field in current:
        name = prefix + field.name
        before = known.pop(field.name, None)
        if before is None:
            if name in required or not field.nullable:
                yield Difference(name, f"{field.type}, never null", "no such column")
            continue
        if before.nullable and not field.nullable:
            yield Difference(name, f"{field.type}, never null", f"{before.type}, possibly null")
        yield from _compare_types(field.type, before.type, name, required)
    for gone in known.values():
        if prefix or not gone.nullable:
            yield Difference(prefix + gone.name, "no such column", str(gone.type))


def _compare_types(
    current: pa.DataType, older: pa.DataType, name: str, required: frozenset[str]
) -> Iterator[Difference]:
    if pa.types.is_struct(current) and pa.types.is_struct(older):
        yield from _compare(list(current), list(older), f"{name}.", required)
    elif pa.types.is_list(current) and pa.types.is_list(older):
        yield from _compare_types(current.value_type, older.value_type, f"{name}.[]", required)
    elif current != older:
        yield Difference(name, str(current), str(older))


def _required(model: type[BaseModel], prefix: str) -> Iterator[str]:
    for name, info in model.model_fields.items():
        annotation, is_nullable = plain_annotation(info.annotation)
        if not is_nullable:
            yield prefix + name
        inner, path = annotation, f"{prefix}{name}."
        while get_origin(inner) in (list, tuple):
            inner, _ = plain_annotation(get_args(inner)[0])
            path += "[]."
        if isinstance(inner, type) and issubclass(inner, BaseModel):
            yield from _required(inner, path)


def _footer(store: PartStore, part: Part) -> pa.Schema:
    place = f"{store.place}/{part.part}"
    try:
        with store.open(part.part) as file:
            schema = pq.read_schema(file)
    except FileNotFoundError as error:
        raise IntegrityError(f"{place} is in the ledger but not there; see `simic doctor`") from error
    except pa.ArrowInvalid as error:
        raise IntegrityError(f"{place} cannot be read: {error}; see `simic doctor`") from error
    except OSError as error:
        raise TransientError(f"cannot read {place}: {error}; try again") from error
    if schema_digest(schema) != part.schema_digest:
        raise IntegrityError(f"{place} has other columns than the ledger says; see `simic doctor --deep`")
    return schema
