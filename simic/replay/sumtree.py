"""Weights of many rows, drawn from and changed in proportion to few.

A binary sum tree in one array, without its peak: the level of ``_CROWN`` nodes is searched through its prefix sums,
which costs less than the levels that would stand above it. Whole batches go up and down, level by level. Every sum is
its two children's, added anew whenever one of them changes, so it depends on the leaves alone: no drift however often
they change, and a tree that is rebuilt from its leaves has the same bits.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from simic.contracts.errors import ContractViolation

__all__ = ["SumTree"]

Rows = NDArray[np.int64]
Weights = NDArray[np.float64]

_CROWN = 2048
"""Nodes of the widest level that is searched whole."""
_GREATEST = 1e100
"""A weight above this is as good as infinite: sums of such weights could be."""


class SumTree:
    """``capacity`` weights, finite and not negative, 0 at first; weight 0 is never drawn."""

    def __init__(self, capacity: int) -> None:
        if capacity < 1:
            raise ContractViolation(f"a sum tree needs at least one row, found capacity {capacity}")
        self._capacity = capacity
        self._leaves_at = 1 << (capacity - 1).bit_length()
        self._crown_at = min(_CROWN, self._leaves_at)
        self._depth = self._leaves_at.bit_length() - self._crown_at.bit_length()
        """Levels below the crown; the children of node n are 2n and 2n + 1."""
        self._nodes = np.zeros(2 * self._leaves_at)
        self._prefix: Weights | None = None

    def __len__(self) -> int:
        return self._capacity

    @property
    def size_bytes(self) -> int:
        """Bytes of the arrays held."""
        return self._nodes.nbytes

    @property
    def total(self) -> float:
        """Sum of all weights."""
        return float(self._sums()[-1])

    def weights(self) -> Weights:
        """All leaves [capacity], as a copy."""
        return self._nodes[self._leaves_at : self._leaves_at + self._capacity].copy()

    def get(self, rows: Rows) -> Weights:
        """Weights of ``rows`` [B]."""
        self._refuse_outside(rows)
        return self._nodes.take(rows + self._leaves_at)

    def set(self, rows: Rows, weights: Weights) -> None:
        """Replace the weights of ``rows`` [B]; of repeated rows the last one counts. Refuses what is no weight."""
        self._refuse_outside(rows)
        refuse_unless_weights(weights)
        if len(rows):
            self.put(rows, weights)

    def put(self, rows: Rows, weights: Weights) -> None:
        """``set`` for at least one row, where rows and weights have been checked already."""
        nodes = rows + self._leaves_at
        self._nodes[nodes] = weights
        self._prefix = None
        for _ in range(self._depth):
            nodes >>= 1
            children = nodes + nodes
            sums = self._nodes.take(children)
            children += 1
            sums += self._nodes.take(children)
            self._nodes[nodes] = sums

    def replace_all(self, weights: Weights) -> None:
        """Set every leaf from [capacity] and rebuild."""
        if weights.shape != (self._capacity,):
            raise ContractViolation(f"expected {self._capacity} weights, found shape {weights.shape}")
        refuse_unless_weights(weights)
        self._nodes[self._leaves_at : self._leaves_at + self._capacity] = weights
        self._prefix = None
        level = self._leaves_at
        while level > self._crown_at:
            children = self._nodes[level : 2 * level]
            level >>= 1
            np.add(children[::2], children[1::2], out=self._nodes[level : 2 * level])

    def find(self, marks: Weights) -> Rows:
        """For ``marks`` [B] in [0, total]: the row in whose share of the total each one falls.

        Raises ContractViolation where nothing has any weight, and for a mark outside.
        """
        sums = self._sums()
        total = sums[-1]
        if not total > 0.0:
            raise ContractViolation("nothing to draw: every weight is 0")
        if len(marks) and not (marks.min() >= 0.0 and marks.max() <= total):
            raise ContractViolation(f"marks must lie in [0, {total}], found {marks.min()} to {marks.max()}")
        # A share times the total may round up to the total itself, which belongs to nobody.
        marks = np.minimum(marks, np.nextafter(total, 0.0))
        crown = sums.searchsorted(marks, side="right")
        rest = marks - np.where(crown > 0, sums.take(crown - 1, mode="wrap"), 0.0)
        nodes = self._descend(crown + self._crown_at, rest, is_careful=False)
        if (missed := self._nodes.take(nodes) == 0.0).any():
            nodes[missed] = self._descend(crown[missed] + self._crown_at, rest[missed], is_careful=True)
        found: Rows = nodes - self._leaves_at
        return found

    def _descend(self, nodes: Rows, rest: Weights, *, is_careful: bool) -> Rows:
        """From the crown to the leaves. Rounding may push a mark past its subtree; care keeps it out of empty ones."""
        nodes, rest = nodes.copy(), rest.copy()
        for _ in range(self._depth):
            nodes += nodes
            left = self._nodes.take(nodes)
            goes_right = rest >= left
            if is_careful:
                goes_right &= self._nodes.take(nodes + 1) > 0.0
            nodes += goes_right
            left *= goes_right
            rest -= left
        return nodes

    def _sums(self) -> Weights:
        """Prefix sums of the crown's nodes, kept until a weight changes."""
        if self._prefix is None:
            self._prefix = self._nodes[self._crown_at : 2 * self._crown_at].cumsum()
        return self._prefix

    def _refuse_outside(self, rows: Rows) -> None:
        """A negative row would silently count from the end; read without its sign it is too large as well."""
        if len(rows) and np.ascontiguousarray(rows, dtype=np.int64).view(np.uint64).max() >= self._capacity:
            raise ContractViolation(f"rows must lie in [0, {self._capacity}), found {rows.min()} to {rows.max()}")


def refuse_unless_weights(weights: Weights) -> None:
    """ContractViolation unless all are finite and not negative."""
    if len(weights) and not (weights.min() >= 0.0 and weights.max() <= _GREATEST):
        wrong = np.flatnonzero(~((weights >= 0.0) & (weights <= _GREATEST)))
        raise ContractViolation(
            f"{len(wrong)} of {len(weights)} priorities are NaN, negative or beyond {_GREATEST:g}, such as "
            f"{weights[wrong[0]]}: look for the loss or advantage that produced it"
        )
