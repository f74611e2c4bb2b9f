"""Columns in memory that is allocated once: sequences are appended, forgotten, and moved together now and then.

Each sequence takes one graph row per step and one more for its final state, all in one piece, so that the place of
its first row is all there is to remember. Rows that nobody remembers stay until ``compact`` moves the others over them.
Shapes: R graph rows, E sequences.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from simic.contracts.errors import ContractViolation
from simic.replay.flat import CHILDREN, COLUMNS, ROW_COLUMNS, Arrays, ptr_name
from simic.replay.graphs import GraphTable, local_edges, spans
from simic.replay.store import GraphStore

__all__ = ["Arena", "Piece", "counts_of", "piece_of"]

ROWS = "row"
_GROWTH = 1.5
"""What is allocated when room runs out, over what is needed."""


class Piece(NamedTuple):
    """Whole sequences on their way into an arena."""

    lengths: NDArray[np.int64]
    """[E] steps."""
    arrays: Arrays
    """Under the names of ``flat``; R is the sum of lengths + 1."""

    def counts(self) -> dict[str, int]:
        """Rows per table."""
        return {
            ROWS: len(self.arrays["context_x"]),
            **{child: int(self.arrays[ptr_name(child)][-1]) for child in CHILDREN},
        }

    @staticmethod
    def checked(arrays: Mapping[str, Any], lengths: NDArray[np.int64]) -> Piece:
        """From outside; ContractViolation unless columns, offsets and edges agree with each other and ``lengths``."""
        expected = {*COLUMNS, *(ptr_name(child) for child in CHILDREN)}
        if set(arrays) != expected:
            raise ContractViolation(f"experience: columns differ by {sorted(set(arrays) ^ expected)}")
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
            raise ContractViolation(f"experience: {wrong} do not fit {len(lengths)} sequences of {rows} graphs")
        return Piece(lengths, columns)


def counts_of(store: GraphStore, sequence_ids: NDArray[np.int64]) -> dict[str, int]:
    """``piece_of(...).counts()``, from the offsets alone."""
    places = store.places(sequence_ids)
    rows = np.concatenate([spans(places.starts, places.lengths), places.finals])
    ptrs = {child: getattr(store.table, ptr_name(child)).numpy() for child in CHILDREN}
    return {ROWS: len(rows), **{child: int((ptr[rows + 1] - ptr[rows]).sum()) for child, ptr in ptrs.items()}}


def piece_of(store: GraphStore, sequence_ids: NDArray[np.int64]) -> Piece:
    """Sequences of a store; where a final state stands, the columns of steps are 0 and no action is legal."""
    places = store.places(sequence_ids)
    rows = np.repeat(places.finals, places.lengths + 1)
    is_step = np.ones(len(rows), dtype=np.bool_)
    is_step[np.cumsum(places.lengths + 1) - 1] = False
    rows[is_step] = spans(places.starts, places.lengths)
    graphs = store.table.take(torch.from_numpy(rows))
    connects, monitors = local_edges(graphs)
    tensors = {name: getattr(graphs, name) for name in GraphTable._fields if name not in {"connects", "monitors"}}
    arrays: Arrays = {name: tensor.numpy() for name, tensor in tensors.items()}
    arrays |= {"connects": connects.contiguous().numpy(), "monitors": monitors.contiguous().numpy()}
    sources = {**store.steps._asdict(), "mask_op": store.masks.op, "mask_blueprint": store.masks.blueprint}
    for name, source in sources.items():
        arrays[name] = _scattered(source.numpy(), rows[is_step], is_step)
    slot_is_step = np.repeat(is_step, np.diff(arrays["slot_ptr"]))
    ptr = store.table.slot_ptr.numpy()
    slots = spans(ptr[rows[is_step]], np.diff(arrays["slot_ptr"])[is_step])
    arrays["mask_slot"] = _scattered(store.masks.slot.numpy(), slots, slot_is_step)
    return Piece(places.lengths, arrays)


def _scattered(source: NDArray[Any], rows: NDArray[np.int64], where: NDArray[np.bool_]) -> NDArray[Any]:
    """Zeros, and ``source[rows]`` at the places that ``where`` marks."""
    out = np.zeros((len(where), *source.shape[1:]), dtype=source.dtype)
    out[where] = source[rows]
    return out


class Arena:
    """Preallocated columns of the shape of the first piece; nothing here knows which rows still matter."""

    def __init__(self, like: Piece) -> None:
        self._arrays: Arrays = {name: values[:0].copy() for name, values in like.arrays.items()}
        for child in CHILDREN:
            self._arrays[ptr_name(child)] = np.zeros(1, dtype=np.int64)
        self.used = dict.fromkeys((ROWS, *CHILDREN), 0)
        """Rows per table that have been written, remembered or not."""

    @property
    def size_bytes(self) -> int:
        """Bytes of all arrays, used or not."""
        return sum(values.nbytes for values in self._arrays.values())

    def allocated(self) -> dict[str, int]:
        """Rows per table that there is memory for."""
        return {table: self._allocated(table) for table in self.used}

    def has_room(self, counts: dict[str, int]) -> bool:
        """Whether rows would fit without another allocation."""
        return all(self.used[table] + counts[table] <= self._allocated(table) for table in self.used)

    def grown_bytes(self, counts: dict[str, int], *, is_exact: bool = False) -> int:
        """``size_bytes`` after ``grow`` with the same arguments."""
        return self.bytes_of(self._grown(counts, is_exact))

    def bytes_of(self, sizes: dict[str, int]) -> int:
        """What tables of that many rows would take alone."""
        return sum(
            self._length(name, sizes) * values.itemsize * int(np.prod(values.shape[1:], dtype=np.int64))
            for name, values in self._arrays.items()
        )

    def grow(self, counts: dict[str, int], *, is_exact: bool = False) -> None:
        """Allocate for more rows; one column at a time, so that only one is held twice."""
        sizes = self._grown(counts, is_exact)
        for name, values in self._arrays.items():
            larger = np.zeros((self._length(name, sizes), *values.shape[1:]), dtype=values.dtype)
            larger[: len(values)] = values
            self._arrays[name] = larger

    def clear(self) -> None:
        """Forget every row and give its memory back."""
        for name, values in self._arrays.items():
            self._arrays[name] = values[: int(name in {ptr_name(child) for child in CHILDREN})].copy()
        self.used = dict.fromkeys(self.used, 0)

    def append(self, piece: Piece) -> NDArray[np.int64]:
        """Copy a piece behind what is there, where ``has_room``; the first rows [E] of its sequences."""
        counts = piece.counts()
        for name, values in self._arrays.items():
            given = piece.arrays[name]
            if given.shape[1:] != values.shape[1:] or given.dtype != values.dtype:
                raise ContractViolation(
                    f"{name}: the buffer holds {values.dtype} {values.shape[1:]}, found {given.dtype} "
                    f"{given.shape[1:]}: one buffer takes the experience of one vocabulary and feature version"
                )
        for child in CHILDREN:
            ptr, at = self._arrays[ptr_name(child)], self.used[ROWS]
            ptr[at + 1 : at + 1 + counts[ROWS]] = piece.arrays[ptr_name(child)][1:] + self.used[child]
        for table, names in ((ROWS, ROW_COLUMNS), *CHILDREN.items()):
            for name in names:
                self._arrays[name][self.used[table] : self.used[table] + counts[table]] = piece.arrays[name]
        firsts = self.used[ROWS] + np.cumsum(piece.lengths + 1) - (piece.lengths + 1)
        self.used = {table: used + counts[table] for table, used in self.used.items()}
        return firsts

    def compact(self, firsts: NDArray[np.int64], lengths: NDArray[np.int64]) -> NDArray[np.int64]:
        """Keep the given sequences [E] only, moved to the front in order of place; their new first rows."""
        order = np.argsort(firsts)
        rows = spans(firsts[order], lengths[order] + 1)
        for name in ROW_COLUMNS:
            self._arrays[name][: len(rows)] = self._arrays[name][rows]
        self.used[ROWS] = len(rows)
        for child, names in CHILDREN.items():
            ptr = self._arrays[ptr_name(child)]
            counts = ptr[rows + 1] - ptr[rows]
            chosen = spans(ptr[rows], counts)
            for name in names:
                self._arrays[name][: len(chosen)] = self._arrays[name][chosen]
            np.cumsum(counts, out=ptr[1 : len(rows) + 1])
            self.used[child] = len(chosen)
        moved = np.empty_like(firsts)
        moved[order] = np.cumsum(lengths[order] + 1) - (lengths[order] + 1)
        return moved

    def export(self, firsts: NDArray[np.int64], lengths: NDArray[np.int64]) -> Piece:
        """Copies of the given sequences, in that order."""
        rows = spans(firsts, lengths + 1)
        arrays: Arrays = {name: self._arrays[name][rows] for name in ROW_COLUMNS}
        for child, names in CHILDREN.items():
            ptr = self._arrays[ptr_name(child)]
            counts = ptr[rows + 1] - ptr[rows]
            chosen = spans(ptr[rows], counts)
            arrays |= {name: self._arrays[name][chosen] for name in names}
            arrays[ptr_name(child)] = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
        return Piece(lengths, arrays)

    def arrays(self) -> Arrays:
        """Views of all columns as far as they are written."""
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
