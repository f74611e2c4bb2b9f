"""Values of query results as JSON, without what Python's types would drop.

DuckDB hands Python an infinite timestamp or date as the last moment of the year 9999, an interval without its months,
nanoseconds cut to microseconds, and no interval of more than 999,999,999 days at all. Columns of such types, also
within lists, structs and maps, are read as DuckDB's own text instead.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any, NamedTuple

from duckdb.sqltypes import DuckDBPyType

__all__ = ["Reading", "inner_types", "plain_value", "reading_of"]


class Reading(NamedTuple):
    """How the values of one type are read."""

    cast: str | None
    """Type to which SQL casts the values first; None if they are read as they are."""
    convert: Callable[[Any], Any]
    """Makes a value, as Python has it after the cast, a value for JSON."""


def plain_value(value: Any) -> Any:
    """Return a value for JSON: times in ISO 8601, bytes in hexadecimal, values that JSON lacks (NaN too) as text.

    A decimal is a float if that has all its digits, else text.
    """
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, Decimal):
        near = float(value)
        return near if Decimal(repr(near)) == value else str(value)
    if isinstance(value, datetime):
        return (value if value.tzinfo is None else value.astimezone(UTC)).isoformat()
    if isinstance(value, (bytes, bytearray, memoryview)):
        return bytes(value).hex()
    if isinstance(value, Mapping):
        return {str(plain_value(key)): plain_value(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain_value(item) for item in value]
    return str(value)


def reading_of(kind: DuckDBPyType) -> Reading:
    """Return how values of type ``kind`` are read."""
    if kind.id in _MOMENTS:
        return Reading("VARCHAR", _moment)
    if kind.id in _TEXTS:
        return Reading("VARCHAR", plain_value)
    if kind.id == "variant":
        return Reading("JSON", _parsed)
    if kind.id in _NESTED:
        return _NESTED[kind.id](kind)
    return _AS_IT_IS


def inner_types(kind: DuckDBPyType) -> list[DuckDBPyType]:
    """Return the types that values of type ``kind`` are made of; none if they have no parts."""
    return [member for _, member in _members(kind)] if kind.id in _NESTED else []


_AS_IT_IS = Reading(None, plain_value)
_MOMENTS = frozenset(
    {"timestamp", "timestamp_s", "timestamp_ms", "timestamp_ns", "timestamp with time zone", "timestamptz_ns"}
)
_TEXTS = frozenset({"date", "interval", "time_ns", "geometry"})
_KEYS_APART = frozenset({"list", "array", "struct", "tuple", "map", "union"})
"""Types of keys for which DuckDB gives a map as a list of keys and one of values, because Python cannot hash them."""
_MOMENT = re.compile(r"(\d{4}-\d\d-\d\d) (\d\d:\d\d:\d\d)(?:\.(\d+))?(\+00)?")
_FRACTION_DIGITS = 6
"""Digits of a second, at least; nanoseconds have up to nine."""


def _moment(text: str | None) -> str | None:
    """Return DuckDB's text in ISO 8601; infinity, and years before 1 or after 9999, stay as they are."""
    if text is None or (match := _MOMENT.fullmatch(text)) is None:
        return text
    date, clock, fraction, zone = match.groups()
    digits = f".{fraction:0<{_FRACTION_DIGITS}}" if fraction else ""
    return f"{date}T{clock}{digits}{'+00:00' if zone else ''}"


def _parsed(text: str | None) -> Any:
    return None if text is None else plain_value(json.loads(text, parse_float=Decimal))


def _items(kind: DuckDBPyType) -> Reading:
    """Read a list, or an array, which has a size too."""
    ((_, item),) = _members(kind)
    inner = reading_of(item)
    if inner.cast is None:
        return _AS_IT_IS
    length = "".join(str(size) for name, size in kind.children if name == "size")
    return Reading(f"{inner.cast}[{length}]", _unless_null(lambda values: [inner.convert(value) for value in values]))


def _struct(kind: DuckDBPyType) -> Reading:
    members = {name: reading_of(member) for name, member in _members(kind)}
    if all(member.cast is None for member in members.values()):
        return _AS_IT_IS
    return Reading(
        f"STRUCT({_named(_members(kind))})",
        _unless_null(lambda value: {name: members[name].convert(item) for name, item in value.items()}),
    )


def _tuple(kind: DuckDBPyType) -> Reading:
    members = [reading_of(member) for _, member in _members(kind)]
    if all(member.cast is None for member in members):
        return _AS_IT_IS
    return Reading(
        f"TUPLE({', '.join(_type(member) for _, member in _members(kind))})",
        _unless_null(lambda value: [member.convert(item) for member, item in zip(members, value, strict=True)]),
    )


def _map(kind: DuckDBPyType) -> Reading:
    (_, keys), (_, values) = _members(kind)
    key, value = reading_of(keys), reading_of(values)
    if key.cast is None and value.cast is None:
        return _AS_IT_IS
    if keys.id in _KEYS_APART:
        apart = {"key": key, "value": value}
        convert = _unless_null(
            lambda lists: {name: [reading.convert(item) for item in lists[name]] for name, reading in apart.items()}
        )
    else:
        convert = _unless_null(
            lambda pairs: {str(key.convert(name)): value.convert(item) for name, item in pairs.items()}
        )
    return Reading(f"MAP({_type(keys)}, {_type(values)})", convert)


def _union(kind: DuckDBPyType) -> Reading:
    """Read a union, whose value does not say which member it is; so its moments stay DuckDB's text."""
    members = _members(kind)[1:]  # the first is the tag
    if all(reading_of(member).cast is None for _, member in members):
        return _AS_IT_IS
    return Reading(f"UNION({_named(members)})", plain_value)


_NESTED = {"list": _items, "array": _items, "struct": _struct, "tuple": _tuple, "map": _map, "union": _union}


def _members(kind: DuckDBPyType) -> list[tuple[str, DuckDBPyType]]:
    return [(name, member) for name, member in kind.children if isinstance(member, DuckDBPyType)]


def _unless_null(convert: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda value: None if value is None else convert(value)


def _type(kind: DuckDBPyType) -> str:
    return reading_of(kind).cast or str(kind)


def _named(members: Sequence[tuple[str, DuckDBPyType]]) -> str:
    return ", ".join(f'"{name.replace(chr(34), chr(34) * 2)}" {_type(member)}' for name, member in members)
