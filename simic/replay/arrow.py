"""Nested Arrow columns to flat NumPy columns, without a Python object per row.

A struct is a bundle of columns, a list is values plus offsets: both are taken apart as they lie. Null turns into NaN
or -1 where the contract allows absence, and is refused everywhere else.
Shapes: N rows, V values of all lists.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]
from numpy.typing import DTypeLike, NDArray

from simic.contracts.errors import ContractViolation

__all__ = ["Ragged", "codes", "column", "field", "flags", "numbers", "pairs", "ragged", "rectangle", "texts"]


class Ragged(NamedTuple):
    """A list column taken apart."""

    values: pa.Array
    """[V]"""
    ptr: NDArray[np.int64]
    """[N + 1]: row i owns ``ptr[i]:ptr[i + 1]``."""


def column(table: pa.Table, name: str) -> pa.Array:
    """A top-level column in one piece."""
    if name not in table.column_names:
        raise ContractViolation(f"snapshot has no column {name}; found {table.column_names}")
    return _whole(table.column(name))


def field(struct: pa.Array, name: str) -> pa.Array:
    """One field [N] of a struct column; null where the struct is."""
    if not pa.types.is_struct(struct.type) or struct.type.get_field_index(name) < 0:
        raise ContractViolation(f"expected a struct with a field {name}, found {struct.type}")
    return _whole(pc.struct_field(struct, [name]))


def numbers(array: pa.Array, dtype: DTypeLike, name: str) -> NDArray[Any]:
    """[N] of ``dtype``; null is NaN in a floating dtype and refused in any other."""
    target = np.dtype(dtype)
    if target.kind == "f":
        values = pc.fill_null(array.cast(pa.float64()), np.nan)
    else:
        _refuse_nulls(array, name)
        values = array.cast(pa.int64())
    out: NDArray[Any] = values.to_numpy(zero_copy_only=False).astype(target)
    return out


def flags(array: pa.Array, name: str) -> NDArray[np.bool_]:
    """[N] bool without nulls."""
    _refuse_nulls(array, name)
    out: NDArray[np.bool_] = array.cast(pa.bool_()).to_numpy(zero_copy_only=False).astype(np.bool_)
    return out


def codes(array: pa.Array, choices: Sequence[Any], name: str) -> NDArray[np.int64]:
    """[N] positions in ``choices``; -1 for null, and an unknown value is refused."""
    kind = pa.string() if isinstance(choices[0], str) else pa.float64()
    values = array.cast(kind)
    indices = pc.index_in(values, value_set=pa.array(list(choices), type=kind))
    if indices.null_count != values.null_count:
        known = set(choices)
        unknown = sorted({value for value in pc.unique(values).to_pylist() if value is not None} - known)
        raise ContractViolation(f"{name}: unknown values {unknown[:5]}; known are {list(choices)}")
    out: NDArray[np.int64] = pc.fill_null(indices, -1).to_numpy(zero_copy_only=False).astype(np.int64)
    return out


def texts(array: pa.Array) -> tuple[str | None, ...]:
    """One string per row; meant for one row per episode."""
    return tuple(array.cast(pa.string()).to_pylist())


def ragged(array: pa.Array, name: str) -> Ragged:
    """Values and offsets of a list column, whatever kind of list it is."""
    _refuse_nulls(array, name)
    if pa.types.is_fixed_size_list(array.type):
        return Ragged(array.flatten(), np.arange(len(array) + 1, dtype=np.int64) * array.type.list_size)
    if not (pa.types.is_list(array.type) or pa.types.is_large_list(array.type)):
        raise ContractViolation(f"{name}: expected lists, found {array.type}")
    offsets = array.offsets.to_numpy().astype(np.int64)
    return Ragged(array.values.slice(offsets[0], offsets[-1] - offsets[0]), offsets - offsets[0])


def rectangle(lists: Ragged, width: int, name: str) -> pa.Array:
    """The values [N * width] of lists that all have ``width`` entries."""
    if (np.diff(lists.ptr) != width).any():
        raise ContractViolation(f"{name}: expected lists of {width} entries")
    return lists.values


def pairs(array: pa.Array, name: str) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """A list of pairs per row as [2, V], and its offsets [N + 1]."""
    outer = ragged(array, name)
    flat = numbers(rectangle(ragged(outer.values, name), 2, name), np.int64, name)
    return np.ascontiguousarray(flat.reshape(-1, 2).T), outer.ptr


def _whole(array: pa.Array | pa.ChunkedArray) -> pa.Array:
    return array.combine_chunks() if isinstance(array, pa.ChunkedArray) else array


def _refuse_nulls(array: pa.Array, name: str) -> None:
    if array.null_count:
        raise ContractViolation(f"{name}: {array.null_count} of {len(array)} rows are null; absent is not allowed here")
