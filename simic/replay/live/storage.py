"""Preallocated columns for the sequences of a live buffer: appended, released, and compacted now and then.

Each sequence takes one graph row per step and one for its final state, contiguous, so only the place of its first row
is stored. Released rows stay until ``compact`` moves live rows over them.

Shapes: R graph rows, E sequences.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from simic.contracts.errors import ContractError
from simic.numerics.ragged import concatenated_ranges
from simic.replay.batch import CHILDREN, COLUMNS, ROW_COLUMNS, Arrays, ptr_name
from simic.replay.dataset import GraphDataset

__all__ = ["CAUSES", "Chunk", "ColumnStore", "SequenceTable", "chunk_of", "counts_of"]

ROWS = "row"
_GROWTH = 1.5
"""Allocated rows divided by needed rows when memory grows."""


class Chunk(NamedTuple):
    """Whole sequences that are about to be appended."""

    lengths: NDArray[np.int64]
    """[E]: number of steps."""
    arrays: Arrays
    """Columns under the names of ``flat``; R is the sum of lengths + 1."""

    def counts(self) -> dict[str, int]:
        """Return the number of rows per table."""
        return {
            ROWS: len(self.arrays["context_x"]),
            **{child: int(self.arrays[ptr_name(child)][-1]) for child in CHILDREN},
        }

    @staticmethod
    def checked(arrays: Mapping[str, Any], lengths: NDArray[np.int64]) -> Chunk:
        """Check columns from outside; raise ContractError unless they, offsets, edges and ``lengths`` agree."""
        expected = {*COLUMNS, *(ptr_name(child) for child in CHILDREN)}
        if set(arrays) != expected:
            raise ContractError(f"experience: columns differ by {sorted(set(arrays) ^ expected)}")
        columns = {name: np.asarray(values) for name, values in arrays.items()}
        rows = int((lengths + 1).sum())
        wrong = [name for name in ROW_COLUMNS if len(columns[name]) != rows]
        for child, names in CHILDREN.items():
            ptr = columns[ptr_name(child)]
            if ptr.dtype != np.int64 or ptr.shape != (rows + 1,) or ptr[0] != 0 or (np.diff(ptr) < 0).any():
                wrong.append(ptr_name(child))
            else:
                wrong += [name for name in names if len(columns[name]) != ptr[-1]]
        for name, ends in () if wrong else (("connects", ("layer", "layer")), ("monitors", ("slot", "layer"))):
            counts = [np.repeat(np.diff(columns[ptr_name(e)]), np.diff(columns[ptr_name(name)])) for e in ends]
            edges = columns[name]
            if edges.dtype != np.int32 or (edges < 0).any() or (edges >= np.stack(counts, axis=1)).any():
                wrong.append(name)
        if wrong:
            raise ContractError(f"experience: {wrong} do not fit {len(lengths)} sequences of {rows} graphs")
        return Chunk(lengths, columns)


def counts_of(store: GraphDataset, sequence_ids: NDArray[np.int64]) -> dict[str, int]:
    """Return ``chunk_of(...).counts()``, computed from the offsets alone."""
    spans = store.spans(sequence_ids)
    rows = np.concatenate([concatenated_ranges(spans.starts, spans.lengths), spans.finals])
    ptrs = {child: getattr(store.table, ptr_name(child)).numpy() for child in CHILDREN}
    return {ROWS: len(rows), **{child: int((ptr[rows + 1] - ptr[rows]).sum()) for child, ptr in ptrs.items()}}


def chunk_of(store: GraphDataset, sequence_ids: NDArray[np.int64]) -> Chunk:
    """Return the sequences of a store; in rows of a final state, step columns are 0 and no action is legal."""
    spans = store.spans(sequence_ids)
    rows = np.repeat(spans.finals, spans.lengths + 1)
    is_step = np.ones(len(rows), dtype=np.bool_)
    is_step[np.cumsum(spans.lengths + 1) - 1] = False
    rows[is_step] = concatenated_ranges(spans.starts, spans.lengths)
    graphs = store.table.select(torch.from_numpy(rows))
    arrays: Arrays = {name: tensor.numpy() for name, tensor in graphs._asdict().items()}
    sources = {**store.steps._asdict(), "mask_op": store.masks.op, "mask_blueprint": store.masks.blueprint}
    for name, source in sources.items():
        arrays[name] = _scattered(source.numpy(), rows[is_step], is_step)
    slot_is_step = np.repeat(is_step, np.diff(arrays["slot_ptr"]))
    ptr = store.table.slot_ptr.numpy()
    slots = concatenated_ranges(ptr[rows[is_step]], np.diff(arrays["slot_ptr"])[is_step])
    arrays["mask_slot"] = _scattered(store.masks.slot.numpy(), slots, slot_is_step)
    return Chunk(spans.lengths, arrays)


def _scattered(source: NDArray[Any], rows: NDArray[np.int64], where: NDArray[np.bool_]) -> NDArray[Any]:
    """Return zeros with ``source[rows]`` at the places marked in ``where``."""
    out = np.zeros((len(where), *source.shape[1:]), dtype=source.dtype)
    out[where] = source[rows]
    return out


class ColumnStore:
    """Preallocated columns with the dtypes and widths of the first chunk; which rows are live is kept elsewhere."""

    def __init__(self, like: Chunk) -> None:
        self._arrays: Arrays = {name: values[:0].copy() for name, values in like.arrays.items()}
        for child in CHILDREN:
            self._arrays[ptr_name(child)] = np.zeros(1, dtype=np.int64)
        self.used = dict.fromkeys((ROWS, *CHILDREN), 0)
        """Number of written rows per table, live or not."""

    @property
    def size_bytes(self) -> int:
        """Bytes of all arrays, including unused rows."""
        return sum(values.nbytes for values in self._arrays.values())

    def allocated(self) -> dict[str, int]:
        """Number of allocated rows per table."""
        return {table: self._allocated(table) for table in self.used}

    def has_room(self, counts: dict[str, int]) -> bool:
        """Return whether rows fit without another allocation."""
        return all(self.used[table] + counts[table] <= self._allocated(table) for table in self.used)

    def grown_bytes(self, counts: dict[str, int], *, is_exact: bool = False) -> int:
        """Return ``size_bytes`` after ``grow`` with the same arguments."""
        return self.bytes_of(self._grown(counts, is_exact))

    def bytes_of(self, sizes: dict[str, int]) -> int:
        """Return the bytes of tables with that many rows."""
        return sum(
            self._length(name, sizes) * values.itemsize * int(np.prod(values.shape[1:], dtype=np.int64))
            for name, values in self._arrays.items()
        )

    def grow(self, counts: dict[str, int], *, is_exact: bool = False) -> None:
        """Allocate more rows, one column at a time, so that only one column exists twice."""
        sizes = self._grown(counts, is_exact)
        for name, values in self._arrays.items():
            larger = np.zeros((self._length(name, sizes), *values.shape[1:]), dtype=values.dtype)
            larger[: len(values)] = values
            self._arrays[name] = larger

    def clear(self) -> None:
        """Release all rows and their memory."""
        for name, values in self._arrays.items():
            self._arrays[name] = values[: int(name in {ptr_name(child) for child in CHILDREN})].copy()
        self.used = dict.fromkeys(self.used, 0)

    def append(self, chunk: Chunk) -> NDArray[np.int64]:
        """Append a chunk for which ``has_room`` holds; return the first row [E] of each sequence."""
        counts = chunk.counts()
        for name, values in self._arrays.items():
            given = chunk.arrays[name]
            if given.shape[1:] != values.shape[1:] or given.dtype != values.dtype:
                raise ContractError(
                    f"{name}: the buffer holds {values.dtype} {values.shape[1:]}, found {given.dtype} "
                    f"{given.shape[1:]}: one buffer takes the experience of one vocabulary and feature version"
                )
        for child in CHILDREN:
            ptr, at = self._arrays[ptr_name(child)], self.used[ROWS]
            ptr[at + 1 : at + 1 + counts[ROWS]] = chunk.arrays[ptr_name(child)][1:] + self.used[child]
        for table, names in ((ROWS, ROW_COLUMNS), *CHILDREN.items()):
            for name in names:
                self._arrays[name][self.used[table] : self.used[table] + counts[table]] = chunk.arrays[name]
        firsts = self.used[ROWS] + np.cumsum(chunk.lengths + 1) - (chunk.lengths + 1)
        self.used = {table: used + counts[table] for table, used in self.used.items()}
        return firsts

    def compact(self, firsts: NDArray[np.int64], lengths: NDArray[np.int64]) -> NDArray[np.int64]:
        """Keep only the given sequences [E], moved to the front in order; return their new first rows."""
        order = np.argsort(firsts)
        rows = concatenated_ranges(firsts[order], lengths[order] + 1)
        for name in ROW_COLUMNS:
            self._arrays[name][: len(rows)] = self._arrays[name][rows]
        self.used[ROWS] = len(rows)
        for child, names in CHILDREN.items():
            ptr = self._arrays[ptr_name(child)]
            counts = ptr[rows + 1] - ptr[rows]
            chosen = concatenated_ranges(ptr[rows], counts)
            for name in names:
                self._arrays[name][: len(chosen)] = self._arrays[name][chosen]
            np.cumsum(counts, out=ptr[1 : len(rows) + 1])
            self.used[child] = len(chosen)
        moved = np.empty_like(firsts)
        moved[order] = np.cumsum(lengths[order] + 1) - (lengths[order] + 1)
        return moved

    def export(self, firsts: NDArray[np.int64], lengths: NDArray[np.int64]) -> Chunk:
        """Return copies of the given sequences, in that order."""
        rows = concatenated_ranges(firsts, lengths + 1)
        arrays: Arrays = {name: self._arrays[name][rows] for name in ROW_COLUMNS}
        for child, names in CHILDREN.items():
            ptr = self._arrays[ptr_name(child)]
            counts = ptr[rows + 1] - ptr[rows]
            chosen = concatenated_ranges(ptr[rows], counts)
            arrays |= {name: self._arrays[name][chosen] for name in names}
            arrays[ptr_name(child)] = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
        return Chunk(lengths, arrays)

    def arrays(self) -> Arrays:
        """Return views of the written part of all columns."""
        out: Arrays = {name: self._arrays[name][: self.used[ROWS]] for name in ROW_COLUMNS}
        for child, names in CHILDREN.items():
            out |= {name: self._arrays[name][: self.used[child]] for name in names}
            out[ptr_name(child)] = self._arrays[ptr_name(child)][: self.used[ROWS] + 1]
        return out

    def _allocated(self, table: str) -> int:
        return len(self._arrays["context_x" if table == ROWS else CHILDREN[table][0]])

    def _grown(self, counts: dict[str, int], is_exact: bool) -> dict[str, int]:
        needed = {table: used + counts[table] for table, used in self.used.items()}
        factor = 1.0 if is_exact else _GROWTH
        return {table: max(self._allocated(table), int(factor * rows)) for table, rows in needed.items()}

    def _length(self, name: str, sizes: dict[str, int]) -> int:
        for child, names in CHILDREN.items():
            if name in names:
                return sizes[child]
        return sizes[ROWS] + int(name in {ptr_name(child) for child in CHILDREN})


Slots = NDArray[np.int64]

CAUSES = ("ttl", "capacity", "bytes", "unseen")
"""Why sequences leave; ``unseen`` counts those that were never drawn."""
_RUN_ID, _VERSION = "S32", "S64"
_FREE = -1


class SequenceTable:
    """Index of the held sequences: slots 0 .. capacity - 1. As a sequence has at least one step, they suffice."""

    def __init__(self, capacity: int) -> None:
        self._ids = np.full(capacity, _FREE, dtype=np.int64)
        self._generation = np.zeros(capacity, dtype=np.int64)
        self._entered_s = np.zeros(capacity)
        self._is_seen = np.zeros(capacity, dtype=np.bool_)
        self._run_ids = np.zeros(capacity, dtype=_RUN_ID)
        self._versions = np.zeros(capacity, dtype=_VERSION)
        self.firsts = np.zeros(capacity, dtype=np.int64)
        """[C]: the sequence's first row in the column store."""
        self.lengths = np.zeros(capacity, dtype=np.int64)
        """[C]: number of steps; 0 where free."""
        self._order = np.zeros(0, dtype=np.int64)
        self.steps = 0
        """Number of steps of all sequences held."""
        self.entered = 0
        """Number of sequences ever added."""
        self.evicted = dict.fromkeys(CAUSES, 0)
        self.cleanups = 0
        """Number of times that sequences left because of age."""
        self.stale = 0
        """Number of priorities for sequences that had left."""

    def __len__(self) -> int:
        return len(self._order)

    @property
    def size_bytes(self) -> int:
        """Bytes of the arrays."""
        return sum(value.nbytes for value in vars(self).values() if isinstance(value, np.ndarray))

    def slots(self) -> Slots:
        """Return the slots in use [E], oldest first."""
        return self._order

    def ids(self) -> Slots:
        """Return the ids [E], oldest first."""
        return self._ids[self._order]

    def ids_at(self, slots: Slots) -> Slots:
        """Return the ids of slots in use."""
        return self._ids[slots]

    def slots_of(self, ids: Slots) -> Slots:
        """Return the slots of ids, held or not."""
        return ids % len(self._ids)

    def holds(self, ids: Slots) -> NDArray[np.bool_]:
        """Return [B] whether each id is held."""
        held: NDArray[np.bool_] = (ids >= 0) & (self._ids[self.slots_of(ids)] == ids)
        return held

    def run_ids(self, slots: Slots) -> list[str]:
        """Return the episodes of slots in use."""
        return [run_id.decode() for run_id in self._run_ids[slots].tolist()]

    def policy_versions(self, slots: Slots) -> list[str | None]:
        """Return the digests of the policies that acted; None for a controller without weights."""
        return [version.decode() or None for version in self._versions[slots].tolist()]

    def enter(
        self,
        firsts: Slots,
        lengths: Slots,
        *,
        now_s: float,
        run_ids: Sequence[str],
        versions: Sequence[str | None],
    ) -> Slots:
        """Assign slots [B], the lowest free ones, to new sequences."""
        slots = np.flatnonzero(self._ids == _FREE)[: len(firsts)]
        if len(slots) < len(firsts) or (len(lengths) and lengths.min() < 1):
            raise ContractError(f"{len(slots)} free slots for {len(firsts)} sequences of at least one step")
        self._ids[slots] = self._generation[slots] * len(self._ids) + slots
        self._generation[slots] += 1
        self._entered_s[slots], self._is_seen[slots] = now_s, False
        self._run_ids[slots] = [_fixed(run_id, _RUN_ID) for run_id in run_ids]
        self._versions[slots] = [_fixed(version or "", _VERSION) for version in versions]
        self.firsts[slots], self.lengths[slots] = firsts, lengths
        self._order = np.concatenate([self._order, slots])
        self.steps += int(lengths.sum())
        self.entered += len(slots)
        return slots

    def leave(self, slots: Slots, cause: str) -> None:
        """Release slots in use and count the cause."""
        self.evicted[cause] += len(slots)
        self.evicted["unseen"] += int((~self._is_seen[slots]).sum())
        self.cleanups += cause == "ttl"
        self.steps -= int(self.lengths[slots].sum())
        self._ids[slots], self.lengths[slots] = _FREE, 0
        self._order = self._order[self._ids[self._order] != _FREE]

    def mark_seen(self, slots: Slots) -> None:
        """Mark slots as drawn."""
        self._is_seen[slots] = True

    def older_than(self, moment_s: float) -> Slots:
        """Return the slots of sequences that were added at or before a moment, in seconds since 1970."""
        return self._order[self._entered_s[self._order] <= moment_s]

    def first_to_go(self, steps: int) -> Slots:
        """Return the fewest slots whose release frees ``steps`` steps, or all: drawn ones first, then oldest first."""
        is_seen = self._is_seen[self._order]
        ranked = np.concatenate([self._order[is_seen], self._order[~is_seen]])
        freed = np.cumsum(self.lengths[ranked])
        return ranked[: int(np.searchsorted(freed, steps)) + 1]

    def get_state(self) -> dict[str, Any]:
        """Return arrays, oldest sequence first, and counters."""
        order = self._order
        return {
            "slots": order.copy(),
            "generation": self._generation.copy(),
            "entered_s": self._entered_s[order],
            "is_seen": self._is_seen[order],
            "lengths": self.lengths[order],
            "run_ids": _letters(self._run_ids[order]),
            "versions": _letters(self._versions[order]),
            "counters": {
                **{f"evicted_{cause}": count for cause, count in self.evicted.items()},
                "entered": self.entered,
                "cleanups": self.cleanups,
                "stale": self.stale,
            },
        }

    @staticmethod
    def of_state(state: Mapping[str, Any], capacity: int) -> SequenceTable:
        """Restore an index; the caller restores ``firsts``. Raises ContractError for an invalid state."""
        sequences = SequenceTable(capacity)
        order, generation = np.asarray(state["slots"]), np.asarray(state["generation"])
        expected = {"entered_s": "f8", "is_seen": "?", "lengths": "i8", "run_ids": "u1", "versions": "u1"}
        columns = {name: np.asarray(state[name]) for name in expected}
        wrong = [
            name for name, dtype in expected.items() if columns[name].dtype != dtype or len(columns[name]) != len(order)
        ]
        is_order = order.dtype == np.int64 and len(np.unique(order)) == len(order)
        if wrong or not is_order or generation.shape != (capacity,) or generation.dtype != np.int64:
            raise ContractError(f"not the state of a live buffer of {capacity} steps: {wrong or 'slots'} do not fit")
        if len(order) and (order.min() < 0 or order.max() >= capacity or columns["lengths"].min() < 1):
            raise ContractError("not the state of a live buffer: slots or lengths are out of range")
        if (generation < 0).any() or (generation[order] < 1).any() or not np.isfinite(columns["entered_s"]).all():
            raise ContractError("not the state of a live buffer: generations or moments are out of range")
        sequences._order, sequences._generation = order.copy(), generation.copy()
        sequences._ids[order] = (generation[order] - 1) * capacity + order
        sequences._entered_s[order], sequences._is_seen[order] = columns["entered_s"], columns["is_seen"]
        for texts, name in ((sequences._run_ids, "run_ids"), (sequences._versions, "versions")):
            texts[order] = _texts(columns[name], texts.dtype)
        sequences.lengths[order] = columns["lengths"]
        counters = {name: int(count) for name, count in state["counters"].items()}
        sequences.evicted = {cause: counters[f"evicted_{cause}"] for cause in CAUSES}
        sequences.entered, sequences.cleanups, sequences.stale = (
            counters[name] for name in ("entered", "cleanups", "stale")
        )
        sequences.steps = int(columns["lengths"].sum())
        if sequences.steps > capacity:
            raise ContractError(f"not the state of a live buffer: {sequences.steps} steps, capacity {capacity}")
        return sequences


def _letters(texts: NDArray[np.bytes_]) -> NDArray[np.uint8]:
    """Encode texts as bytes [E, width] for a checkpoint."""
    return np.frombuffer(texts.tobytes(), dtype=np.uint8).reshape(len(texts), texts.dtype.itemsize)


def _texts(letters: NDArray[np.uint8], dtype: np.dtype[np.bytes_]) -> NDArray[np.bytes_]:
    """Decode texts [E] from ``_letters``."""
    if letters.ndim != 2 or letters.shape[1] != dtype.itemsize:
        raise ContractError(f"not the state of a live buffer: expected texts of {dtype.itemsize} bytes")
    return np.frombuffer(letters.tobytes(), dtype=dtype)


def _fixed(text: str, dtype: str) -> bytes:
    data = text.encode()
    if len(data) > np.dtype(dtype).itemsize:
        raise ContractError(f"{text!r} is longer than {np.dtype(dtype).itemsize} bytes")
    return data
