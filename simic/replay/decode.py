"""Decode nested Arrow columns of field reports into states, masks, actions and propensities.

Shapes: N rows, S slots of all rows, K blueprints, H history epochs, A heads.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]
from numpy.typing import DTypeLike, NDArray

from simic.contracts.actions import ALPHA_CURVES, ALPHA_SPEEDS, ALPHA_TARGETS, HEADS, OPS, TEMPOS, Head
from simic.contracts.batches import (
    HISTORY_COLUMNS,
    LAYER_COLUMNS,
    LAYER_KINDS,
    SLOT_COLUMNS,
    STAGES,
    SYSTEM_COLUMNS,
    Masks,
    Observations,
    relevance,
)
from simic.contracts.errors import ContractError
from simic.contracts.state import HISTORY_EPOCHS

__all__ = [
    "Propensities",
    "Ragged",
    "actions_of",
    "codes",
    "column",
    "field",
    "flags",
    "masks_of",
    "numbers",
    "observations_of",
    "pairs",
    "propensities_of",
    "ragged",
    "rectangle",
    "texts",
]


class Ragged(NamedTuple):
    """Values and offsets of a list column."""

    values: pa.Array
    """[V]"""
    ptr: NDArray[np.int64]
    """[N + 1]: row i owns ``ptr[i]:ptr[i + 1]``."""


def column(table: pa.Table, name: str) -> pa.Array:
    """Return a top-level column as one array; raise ContractError if it is missing."""
    if name not in table.column_names:
        raise ContractError(f"snapshot has no column {name}; found {table.column_names}")
    return _whole(table.column(name))


def field(struct: pa.Array, name: str) -> pa.Array:
    """Return one field [N] of a struct column; null where the struct is null."""
    if not pa.types.is_struct(struct.type) or struct.type.get_field_index(name) < 0:
        raise ContractError(f"expected a struct with a field {name}, found {struct.type}")
    return _whole(pc.struct_field(struct, [name]))


def numbers(array: pa.Array, dtype: DTypeLike, name: str) -> NDArray[Any]:
    """Return [N] of ``dtype``; null becomes NaN in a floating dtype and raises ContractError in any other."""
    target = np.dtype(dtype)
    if target.kind == "f":
        values = pc.fill_null(array.cast(pa.float64()), np.nan)
    else:
        _refuse_nulls(array, name)
        values = array.cast(pa.int64())
    out: NDArray[Any] = values.to_numpy(zero_copy_only=False).astype(target)
    return out


def flags(array: pa.Array, name: str) -> NDArray[np.bool_]:
    """Return bool [N]; raise ContractError for null."""
    _refuse_nulls(array, name)
    out: NDArray[np.bool_] = array.cast(pa.bool_()).to_numpy(zero_copy_only=False).astype(np.bool_)
    return out


def codes(array: pa.Array, choices: Sequence[Any], name: str) -> NDArray[np.int64]:
    """Return positions [N] in ``choices``, -1 for null; raise ContractError for an unknown value."""
    kind = pa.string() if isinstance(choices[0], str) else pa.float64()
    values = array.cast(kind)
    indices = pc.index_in(values, value_set=pa.array(list(choices), type=kind))
    if indices.null_count != values.null_count:
        known = set(choices)
        unknown = sorted({value for value in pc.unique(values).to_pylist() if value is not None} - known)
        remedy = "; declare it in ingest.declared_blueprints, or install it" if name.endswith("blueprint") else ""
        raise ContractError(f"{name}: unknown values {unknown[:5]}; known values: {list(choices)}{remedy}")
    out: NDArray[np.int64] = pc.fill_null(indices, -1).to_numpy(zero_copy_only=False).astype(np.int64)
    return out


def texts(array: pa.Array) -> tuple[str | None, ...]:
    """Return one string per row; for columns with one row per episode."""
    return tuple(array.cast(pa.string()).to_pylist())


def ragged(array: pa.Array, name: str) -> Ragged:
    """Return values and offsets of a list column of any list type."""
    _refuse_nulls(array, name)
    if pa.types.is_fixed_size_list(array.type):
        return Ragged(array.flatten(), np.arange(len(array) + 1, dtype=np.int64) * array.type.list_size)
    if not (pa.types.is_list(array.type) or pa.types.is_large_list(array.type)):
        raise ContractError(f"{name}: expected lists, found {array.type}")
    offsets = array.offsets.to_numpy().astype(np.int64)
    return Ragged(array.values.slice(offsets[0], offsets[-1] - offsets[0]), offsets - offsets[0])


def rectangle(lists: Ragged, width: int, name: str) -> pa.Array:
    """Return the values [N * width] of lists; raise ContractError unless all have ``width`` entries."""
    if (np.diff(lists.ptr) != width).any():
        raise ContractError(f"{name}: expected lists of {width} entries")
    return lists.values


def pairs(array: pa.Array, name: str) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return lists of pairs as [2, V], and their offsets [N + 1]."""
    outer = ragged(array, name)
    flat = numbers(rectangle(ragged(outer.values, name), 2, name), np.int64, name)
    return np.ascontiguousarray(flat.reshape(-1, 2).T), outer.ptr


def _whole(array: pa.Array | pa.ChunkedArray) -> pa.Array:
    return array.combine_chunks() if isinstance(array, pa.ChunkedArray) else array


def _refuse_nulls(array: pa.Array, name: str) -> None:
    if array.null_count:
        raise ContractError(f"{name}: {array.null_count} of {len(array)} rows are null; absent is not allowed here")


_MAX_SLOTS = 1024
_STAGE_NAMES = [stage.value for stage in STAGES]
_KIND_NAMES = [kind.value for kind in LAYER_KINDS]


class Propensities(NamedTuple):
    """Log-probabilities (natural) of the behaviour's actions."""

    heads: NDArray[np.float32]
    """[N, A]; 0 where irrelevant."""
    joint: NDArray[np.float32]
    """[N]"""


def observations_of(states: pa.Array, blueprints: tuple[str, ...]) -> Observations:
    """Decode a column of ``SystemState`` structs [N]."""
    slots = ragged(field(states, "slots"), "state.slots")
    graph = field(states, "graph")
    layers = ragged(field(graph, "layers"), "state.graph.layers")
    connects, connects_ptr = pairs(field(graph, "connects"), "state.graph.connects")
    monitors, monitors_ptr = pairs(field(graph, "monitors"), "state.graph.monitors")
    slot_codes = {"stage": _STAGE_NAMES, "blueprint": list(blueprints)}
    return Observations(
        system={name: numbers(field(states, name), dtype, name) for name, dtype in SYSTEM_COLUMNS.items()},
        history={name: _right_aligned(ragged(field(states, name), name), name) for name in HISTORY_COLUMNS},
        slots={
            name: _coded_or_number(slots.values, name, dtype, slot_codes.get(name))
            for name, dtype in SLOT_COLUMNS.items()
        },
        slot_ptr=slots.ptr,
        layers={
            name: _coded_or_number(layers.values, name, dtype, _KIND_NAMES if name == "kind" else None)
            for name, dtype in LAYER_COLUMNS.items()
        },
        layer_ptr=layers.ptr,
        connects=connects,
        connects_ptr=connects_ptr,
        monitors=monitors,
        monitors_ptr=monitors_ptr,
        blueprints=blueprints,
    )


def masks_of(available: pa.Array, slot_ptr: NDArray[np.int64], blueprints: tuple[str, ...]) -> Masks:
    """Decode a column of ``ActionMasks`` structs [N], for states with slot offsets ``slot_ptr`` [N + 1]."""
    ops, counts = len(OPS), np.diff(slot_ptr)
    op = flags(rectangle(ragged(field(available, "op"), "available.op"), ops, "available.op"), "available.op")
    per_op = ragged(
        rectangle(ragged(field(available, "slot"), "available.slot"), ops, "available.slot"), "available.slot"
    )
    if not np.array_equal(np.diff(per_op.ptr), np.repeat(counts, ops)):
        raise ContractError("available.slot: every operation needs one entry per slot of the state")
    by_op = flags(per_op.values, "available.slot")
    # Stored as [ops][slots] per row, needed as [slots][ops]: entry (o, j) lies o * s + j after the row's start.
    row_start, slots_of_row = np.repeat(slot_ptr[:-1], counts), np.repeat(counts, counts)
    within = np.arange(slot_ptr[-1]) - row_start
    slot = by_op[(ops * row_start + within)[:, None] + slots_of_row[:, None] * np.arange(ops)]
    names = ragged(field(available, "blueprint"), "available.blueprint")
    blueprint = np.zeros((len(available), len(blueprints)), dtype=np.bool_)
    legal = codes(names.values, blueprints, "available.blueprint")
    blueprint[np.repeat(np.arange(len(available)), np.diff(names.ptr)), legal] = True
    return Masks(op=op.reshape(-1, ops), slot=slot, blueprint=blueprint)


def actions_of(actions: pa.Array, blueprints: tuple[str, ...]) -> NDArray[np.int64]:
    """Decode a column of ``Action`` structs to indices [N, A] in the order of ``HEADS``, -1 where irrelevant."""
    curves, ops = [curve.value for curve in ALPHA_CURVES], [op.value for op in OPS]
    choices = {
        Head.OP: ops,
        Head.SLOT: range(_MAX_SLOTS),
        Head.BLUEPRINT: blueprints,
        Head.ALPHA_TARGET: ALPHA_TARGETS,
        Head.ALPHA_SPEED: ALPHA_SPEEDS,
        Head.ALPHA_CURVE: curves,
        Head.TEMPO: TEMPOS,
    }
    rows = np.stack([codes(field(actions, h.value), choices[h], f"action.{h.value}") for h in HEADS], axis=1)
    if (rows[:, 0] < 0).any():
        raise ContractError("action.op: absent is not allowed here")
    if ((rows >= 0) != relevance(rows[:, 0].astype(np.int16))).any():
        raise ContractError("action: factors must be present exactly where the operation uses them")
    return rows


def propensities_of(log_probs: pa.Array, actions: NDArray[np.int64]) -> Propensities:
    """Decode a column of ``BehaviourLogProb`` structs; raise ContractError for a missing one."""
    heads = np.stack([numbers(field(log_probs, h.value), np.float32, h.value) for h in HEADS], axis=1)
    joint = numbers(field(log_probs, "joint"), np.float32, "joint")
    relevant = actions >= 0
    missing = np.isnan(joint) | (relevant & np.isnan(heads)).any(axis=1)
    if missing.any():
        raise ContractError(
            f"log_prob_behaviour is missing in {int(missing.sum())} of {len(missing)} rows, first in row "
            f"{int(np.argmax(missing))}: off-policy learning needs the propensity of every action"
        )
    return Propensities(np.where(relevant, heads, np.float32(0.0)), joint)


def _coded_or_number(values: pa.Array, name: str, dtype: DTypeLike, choices: list[str] | None) -> NDArray[Any]:
    if choices is not None:
        return codes(field(values, name), choices, name).astype(dtype)
    if np.dtype(dtype) == np.bool_:
        return flags(field(values, name), name)
    return numbers(field(values, name), dtype, name)


def _right_aligned(lists: Ragged, name: str) -> NDArray[np.float32]:
    """Return [N, H], with NaN before short histories."""
    lengths = np.diff(lists.ptr)
    if (lengths > HISTORY_EPOCHS).any():
        raise ContractError(f"{name}: histories hold at most {HISTORY_EPOCHS} epochs")
    out = np.full((len(lengths), HISTORY_EPOCHS), np.nan, dtype=np.float32)
    rows = np.repeat(np.arange(len(lengths)), lengths)
    place = np.arange(lists.ptr[-1]) - lists.ptr[rows] + (HISTORY_EPOCHS - lengths)[rows]
    out[rows, place] = numbers(lists.values, np.float32, name)
    return out
