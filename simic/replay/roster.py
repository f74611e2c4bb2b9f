"""Who is in the live buffer: one row of arrays per sequence, no Python object for any of them.

A slot is a row of the arrays and is used again; an id is ``generation * slots + slot`` and is not.
Shapes: C slots, E sequences held, B sequences of a call.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simic.contracts.errors import ContractViolation

__all__ = ["CAUSES", "Roster"]

Slots = NDArray[np.int64]

CAUSES = ("ttl", "capacity", "bytes", "unseen")
"""Why sequences leave; ``unseen`` counts those among them that were never drawn."""
_RUN_ID, _VERSION = "S32", "S64"
_FREE = -1


class Roster:
    """Slots 0 .. capacity - 1; every sequence has at least one step, so there are never too few."""

    def __init__(self, capacity: int) -> None:
        self._ids = np.full(capacity, _FREE, dtype=np.int64)
        self._generation = np.zeros(capacity, dtype=np.int64)
        self._entered_s = np.zeros(capacity)
        self._is_seen = np.zeros(capacity, dtype=np.bool_)
        self._run_ids = np.zeros(capacity, dtype=_RUN_ID)
        self._versions = np.zeros(capacity, dtype=_VERSION)
        self.firsts = np.zeros(capacity, dtype=np.int64)
        """[C]: the sequence's first row in the arena."""
        self.lengths = np.zeros(capacity, dtype=np.int64)
        """[C] steps; 0 where free."""
        self._order = np.zeros(0, dtype=np.int64)
        self.steps = 0
        """Of all sequences held."""
        self.entered = 0
        """Sequences that ever came."""
        self.evicted = dict.fromkeys(CAUSES, 0)
        self.cleanups = 0
        """Times that age took something."""
        self.stale = 0
        """Priorities for sequences that had left."""

    def __len__(self) -> int:
        return len(self._order)

    @property
    def size_bytes(self) -> int:
        """Bytes of the arrays held."""
        return sum(value.nbytes for value in vars(self).values() if isinstance(value, np.ndarray))

    def slots(self) -> Slots:
        """Slots in use [E], oldest first."""
        return self._order

    def ids(self) -> Slots:
        """Ids [E], oldest first."""
        return self._ids[self._order]

    def ids_at(self, slots: Slots) -> Slots:
        """Ids of slots in use."""
        return self._ids[slots]

    def slots_of(self, ids: Slots) -> Slots:
        """Slots of ids, whether these are still held or not."""
        return ids % len(self._ids)

    def holds(self, ids: Slots) -> NDArray[np.bool_]:
        """[B] whether each is held."""
        held: NDArray[np.bool_] = (ids >= 0) & (self._ids[self.slots_of(ids)] == ids)
        return held

    def run_ids(self, slots: Slots) -> list[str]:
        """Episodes of slots in use."""
        return [run_id.decode() for run_id in self._run_ids[slots].tolist()]

    def policy_versions(self, slots: Slots) -> list[str | None]:
        """Digests of the policies that acted; None for a controller without weights."""
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
        """Give slots [B], the lowest free ones, to sequences that have come."""
        slots = np.flatnonzero(self._ids == _FREE)[: len(firsts)]
        if len(slots) < len(firsts) or (len(lengths) and lengths.min() < 1):
            raise ContractViolation(f"{len(slots)} free slots for {len(firsts)} sequences of at least one step")
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
        """Let go of slots in use and count them."""
        self.evicted[cause] += len(slots)
        self.evicted["unseen"] += int((~self._is_seen[slots]).sum())
        self.cleanups += cause == "ttl"
        self.steps -= int(self.lengths[slots].sum())
        self._ids[slots], self.lengths[slots] = _FREE, 0
        self._order = self._order[self._ids[self._order] != _FREE]

    def mark_seen(self, slots: Slots) -> None:
        """They have been drawn."""
        self._is_seen[slots] = True

    def older_than(self, moment_s: float) -> Slots:
        """Slots of what came at or before a moment, in seconds since 1970."""
        return self._order[self._entered_s[self._order] <= moment_s]

    def first_to_go(self, steps: int) -> Slots:
        """The fewest, in the order of leaving, that free ``steps`` steps, or all: drawn ones first, oldest first."""
        is_seen = self._is_seen[self._order]
        ranked = np.concatenate([self._order[is_seen], self._order[~is_seen]])
        freed = np.cumsum(self.lengths[ranked])
        return ranked[: int(np.searchsorted(freed, steps)) + 1]

    def get_state(self) -> dict[str, Any]:
        """Arrays, oldest sequence first, and counters."""
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
    def of_state(state: Mapping[str, Any], capacity: int) -> Roster:
        """A roster as it was; its places in an arena are the caller's. Raises for what does not fit."""
        roster = Roster(capacity)
        order, generation = np.asarray(state["slots"]), np.asarray(state["generation"])
        expected = {"entered_s": "f8", "is_seen": "?", "lengths": "i8", "run_ids": "u1", "versions": "u1"}
        found = {name: np.asarray(state[name]) for name in expected}
        wrong = [
            name for name, dtype in expected.items() if found[name].dtype != dtype or len(found[name]) != len(order)
        ]
        is_order = order.dtype == np.int64 and len(np.unique(order)) == len(order)
        if wrong or not is_order or generation.shape != (capacity,) or generation.dtype != np.int64:
            raise ContractViolation(
                f"not the state of a live buffer of {capacity} steps: {wrong or 'slots'} do not fit"
            )
        if len(order) and (order.min() < 0 or order.max() >= capacity or found["lengths"].min() < 1):
            raise ContractViolation("not the state of a live buffer: slots or lengths are out of range")
        if (generation < 0).any() or (generation[order] < 1).any() or not np.isfinite(found["entered_s"]).all():
            raise ContractViolation("not the state of a live buffer: generations or moments are out of range")
        roster._order, roster._generation = order.copy(), generation.copy()
        roster._ids[order] = (generation[order] - 1) * capacity + order
        roster._entered_s[order], roster._is_seen[order] = found["entered_s"], found["is_seen"]
        for texts, name in ((roster._run_ids, "run_ids"), (roster._versions, "versions")):
            texts[order] = _texts(found[name], texts.dtype)
        roster.lengths[order] = found["lengths"]
        counters = {name: int(count) for name, count in state["counters"].items()}
        roster.evicted = {cause: counters[f"evicted_{cause}"] for cause in CAUSES}
        roster.entered, roster.cleanups, roster.stale = (counters[name] for name in ("entered", "cleanups", "stale"))
        roster.steps = int(found["lengths"].sum())
        if roster.steps > capacity:
            raise ContractViolation(f"not the state of a live buffer: {roster.steps} steps, capacity {capacity}")
        return roster


def _letters(texts: NDArray[np.bytes_]) -> NDArray[np.uint8]:
    """[E, width]: what a checkpoint can hold."""
    return np.frombuffer(texts.tobytes(), dtype=np.uint8).reshape(len(texts), texts.dtype.itemsize)


def _texts(letters: NDArray[np.uint8], dtype: np.dtype[np.bytes_]) -> NDArray[np.bytes_]:
    """[E] from ``_letters``."""
    if letters.ndim != 2 or letters.shape[1] != dtype.itemsize:
        raise ContractViolation(f"not the state of a live buffer: expected texts of {dtype.itemsize} bytes")
    return np.frombuffer(letters.tobytes(), dtype=dtype)


def _fixed(text: str, dtype: str) -> bytes:
    data = text.encode()
    if len(data) > np.dtype(dtype).itemsize:
        raise ContractViolation(f"{text!r} is longer than {np.dtype(dtype).itemsize} bytes")
    return data
