"""Prioritised draws of whole sequences (Schaul et al. 2016, arXiv:1511.05952, proportional variant).

    p_i = |delta_i| + eps        P(i) = p_i^alpha / sum_k p_k^alpha        w_i = (N P(i))^-beta / max_batch w

The unit is a sequence: it is drawn, weighted and prioritised as one, and its steps stay in order. Draws are with
replacement. N counts the rows that are present; the greatest weight of a batch is 1, so weights only shrink a step.
Newcomers enter at the greatest priority that is still remembered, so that they are seen soon.
Shapes: C rows, B rows of a draw.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from simic.contracts.errors import ContractError
from simic.runtime.seeds import generator

__all__ = ["Draw", "Prioritisation", "PrioritisedSampler", "SumTree", "importance_weights", "sequence_magnitudes"]

Weights = NDArray[np.float64]

_CROWN = 2048
"""Number of nodes of the widest level that is searched as a whole."""
_GREATEST = 1e100
"""Largest weight: sums of greater ones could overflow."""


class SumTree:
    """Sum tree of ``capacity`` finite, non-negative weights, initially 0; weight 0 is never drawn."""

    def __init__(self, capacity: int) -> None:
        if capacity < 1:
            raise ContractError(f"a sum tree needs at least one row, found capacity {capacity}")
        self._capacity = capacity
        self._leaves_at = 1 << (capacity - 1).bit_length()
        self._crown_at = min(_CROWN, self._leaves_at)
        self._depth = self._leaves_at.bit_length() - self._crown_at.bit_length()
        """Number of levels below the crown; the children of node n are 2n and 2n + 1."""
        self._nodes = np.zeros(2 * self._leaves_at)
        self._prefix: Weights | None = None

    def __len__(self) -> int:
        return self._capacity

    @property
    def size_bytes(self) -> int:
        """Bytes of the arrays."""
        return self._nodes.nbytes

    @property
    def total(self) -> float:
        """Sum of all weights."""
        return float(self._sums()[-1])

    def weights(self) -> Weights:
        """Return all leaves [capacity] as a copy."""
        return self._nodes[self._leaves_at : self._leaves_at + self._capacity].copy()

    def get(self, rows: Rows) -> Weights:
        """Return the weights of ``rows`` [B]."""
        self._refuse_outside(rows)
        return self._nodes.take(rows + self._leaves_at)

    def set(self, rows: Rows, weights: Weights) -> None:
        """Set the weights of ``rows`` [B]; of repeated rows the last counts. ContractError for an invalid weight."""
        self._refuse_outside(rows)
        refuse_unless_weights(weights)
        if len(rows):
            self.put(rows, weights)

    def put(self, rows: Rows, weights: Weights) -> None:
        """``set`` without checks, for at least one row."""
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
        """Set all leaves from [capacity] and rebuild."""
        if weights.shape != (self._capacity,):
            raise ContractError(f"expected {self._capacity} weights, found shape {weights.shape}")
        refuse_unless_weights(weights)
        self._nodes[self._leaves_at : self._leaves_at + self._capacity] = weights
        self._prefix = None
        level = self._leaves_at
        while level > self._crown_at:
            children = self._nodes[level : 2 * level]
            level >>= 1
            np.add(children[::2], children[1::2], out=self._nodes[level : 2 * level])

    def find(self, marks: Weights) -> Rows:
        """Return for each of ``marks`` [B] in [0, total] the row whose share of the total contains it.

        Raises ContractError if every weight is 0, and for a mark out of range.
        """
        sums = self._sums()
        total = sums[-1]
        if not total > 0.0:
            raise ContractError("nothing to draw: every weight is 0")
        if len(marks) and not (marks.min() >= 0.0 and marks.max() <= total):
            raise ContractError(f"marks must lie in [0, {total}], found {marks.min()} to {marks.max()}")
        # A share times the total may round up to the total itself, which lies in no row's share.
        marks = np.minimum(marks, np.nextafter(total, 0.0))
        crown = sums.searchsorted(marks, side="right")
        rest = marks - np.where(crown > 0, sums.take(crown - 1, mode="wrap"), 0.0)
        nodes = self._descend(crown + self._crown_at, rest, is_careful=False)
        if (missed := self._nodes.take(nodes) == 0.0).any():
            nodes[missed] = self._descend(crown[missed] + self._crown_at, rest[missed], is_careful=True)
        rows: Rows = nodes - self._leaves_at
        return rows

    def _descend(self, nodes: Rows, rest: Weights, *, is_careful: bool) -> Rows:
        """Descend from the crown to the leaves, avoiding empty subtrees that rounding could lead into."""
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
        """Return the prefix sums of the crown's nodes, cached until a weight changes."""
        if self._prefix is None:
            self._prefix = self._nodes[self._crown_at : 2 * self._crown_at].cumsum()
        return self._prefix

    def _refuse_outside(self, rows: Rows) -> None:
        """Raise ContractError for a row out of range; as unsigned numbers negative rows are too large as well."""
        if len(rows) and np.ascontiguousarray(rows, dtype=np.int64).view(np.uint64).max() >= self._capacity:
            raise ContractError(f"rows must lie in [0, {self._capacity}), found {rows.min()} to {rows.max()}")


def refuse_unless_weights(weights: Weights) -> None:
    """Raise ContractError unless all weights are finite and not negative."""
    if len(weights) and not (weights.min() >= 0.0 and weights.max() <= _GREATEST):
        wrong = np.flatnonzero(~((weights >= 0.0) & (weights <= _GREATEST)))
        raise ContractError(
            f"{len(wrong)} of {len(weights)} priorities are NaN, negative or beyond {_GREATEST:g}, such as "
            f"{weights[wrong[0]]}: find the loss or advantage that produced it"
        )


Rows = NDArray[np.int64]
Floats = NDArray[np.float64]

FIRST_MAX = 1.0
"""The priority of new rows before any magnitude is known."""
_LEAST_EPS = 1e-9


class Prioritisation(NamedTuple):
    """The exponents; see the module's formulas."""

    alpha: float = 0.6
    """0 is uniform, 1 is proportional."""
    beta: float = 0.4
    """Initial importance-sampling correction; 1 corrects fully."""
    eps: float = 0.01
    """Added to every magnitude, so that every present row can be drawn."""
    anneal_draws: int = 0
    """Number of draws over which beta rises linearly to 1; 0 keeps ``beta``."""
    max_decay: float = 1.0
    """Factor per update on the greatest priority, which new rows receive: 1 never forgets an outlier, less lets it fall
    back to current magnitudes."""

    def checked(self) -> Prioritisation:
        """Return self; raise ContractError for a value out of range."""
        shares = {"alpha": self.alpha, "beta": self.beta}
        wrong = {name: value for name, value in shares.items() if not 0.0 <= value <= 1.0}
        if not _LEAST_EPS <= self.eps <= 1.0:
            wrong["eps"] = self.eps
        if self.anneal_draws < 0:
            wrong["anneal_draws"] = self.anneal_draws
        if not 0.0 < self.max_decay <= 1.0:
            wrong["max_decay"] = self.max_decay
        if wrong:
            raise ContractError(
                f"prioritisation out of range: {wrong}; alpha and beta lie in [0, 1], eps in [1e-9, 1], "
                "anneal_draws is not negative, max_decay lies in (0, 1]"
            )
        return self

    def beta_after(self, draws: int) -> float:
        """Return beta for the draw after ``draws`` earlier ones."""
        if not self.anneal_draws:
            return self.beta
        return self.beta + (1.0 - self.beta) * min(1.0, draws / self.anneal_draws)


class Draw(NamedTuple):
    """Drawn rows and their importance weights."""

    rows: Rows
    """[B]"""
    weights: NDArray[np.float32]
    """[B] in (0, 1]."""


class PrioritisedSampler:
    """Priorities of the rows 0 .. capacity - 1, of which only present rows are drawn."""

    def __init__(self, capacity: int, *, seed: int, settings: Prioritisation | None = None) -> None:
        self._settings = (settings or Prioritisation()).checked()
        self._tree = SumTree(capacity)
        self._rng = generator(seed, "prioritised")
        self._present = 0
        self._draws = 0
        self._max = FIRST_MAX

    def __len__(self) -> int:
        """Number of present rows."""
        return self._present

    @property
    def size_bytes(self) -> int:
        """Bytes of the arrays."""
        return self._tree.size_bytes

    @property
    def beta(self) -> float:
        """Return the exponent beta of the next draw."""
        return self._settings.beta_after(self._draws)

    @property
    def max_priority(self) -> float:
        """Return the priority of new rows: the greatest magnitude plus eps, or 1 at first."""
        return self._max

    def add(self, rows: Rows) -> None:
        """Mark absent ``rows`` as present."""
        distinct = _distinct(rows)
        if (already := self._tree.get(distinct) > 0.0).any():
            raise ContractError(f"row {distinct[already][0]} is present already; remove it before it is reused")
        self._tree.set(distinct, np.full(len(distinct), self._max**self._settings.alpha))
        self._present += len(distinct)

    def remove(self, rows: Rows) -> None:
        """Mark present ``rows`` as absent."""
        distinct = _distinct(rows)
        self._require_present(distinct)
        self._tree.set(distinct, np.zeros(len(distinct)))
        self._present -= len(distinct)

    def draw(self, count: int, *, is_uniform: bool = False) -> Draw:
        """Draw ``count`` independent rows with their weights; raise ContractError if no row is present.

        ``is_uniform`` ignores priorities: each present row is as likely as another, and all weights are 1.
        """
        if count < 1:
            raise ContractError(f"expected a draw of at least one row, found {count}")
        total = self._tree.total
        if is_uniform and self._present:
            present = np.flatnonzero(self._tree.weights() > 0.0)
            chosen = (self._rng.random(count) * len(present)).astype(np.int64)
            self._draws += 1
            return Draw(present[chosen], np.ones(count, dtype=np.float32))
        rows = self._tree.find(self._rng.random(count) * total)
        weights = importance_weights(self._tree.get(rows) / total, self._present, self.beta)
        self._draws += 1
        return Draw(rows, weights)

    def update(self, rows: Rows, magnitudes: Floats) -> None:
        """Set new |delta| [B] of present ``rows``; raise ContractError, and change nothing, for invalid ones."""
        if rows.shape != magnitudes.shape:
            raise ContractError(f"{rows.shape} rows but {magnitudes.shape} magnitudes")
        if not len(rows):
            return
        refuse_unless_weights(magnitudes)
        self._require_present(rows)
        priorities = magnitudes + self._settings.eps
        self._tree.put(rows, priorities**self._settings.alpha)
        self._max = max(self._max * self._settings.max_decay, float(priorities.max()))

    def probabilities(self) -> Floats:
        """Return the probability [C] of each row in one draw; 0 for absent rows."""
        weights = self._tree.weights()
        return weights / self._tree.total if self._present else weights

    def get_state(self) -> dict[str, Any]:
        """Return the state as arrays and plain JSON for a checkpoint."""
        return {
            "leaves": self._tree.weights(),
            "rng": json.loads(json.dumps(self._rng.bit_generator.state)),
            "draws": self._draws,
            "max_priority": self._max,
        }

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Restore ``get_state``: the same draws follow, bit for bit. An invalid state changes nothing."""
        try:
            leaves = np.asarray(state["leaves"], dtype=np.float64)
            draws, greatest = int(state["draws"]), float(state["max_priority"])
            bits = np.random.PCG64()
            bits.state = state["rng"]
        except (KeyError, TypeError, ValueError) as error:
            raise ContractError(f"not the state of a prioritised sampler: {error!r}") from error
        if draws < 0 or not 0.0 < greatest < np.inf:
            raise ContractError(f"not the state of a prioritised sampler: draws {draws}, max_priority {greatest}")
        self._tree.replace_all(leaves)
        self._rng = np.random.Generator(bits)
        self._present, self._draws, self._max = int((leaves > 0.0).sum()), draws, greatest

    def _require_present(self, rows: Rows) -> None:
        if (absent := self._tree.get(rows) <= 0.0).any():
            raise ContractError(f"row {rows[absent][0]} is not present; it was never added or has been removed")


def importance_weights(probabilities: Floats, present: int, beta: float) -> NDArray[np.float32]:
    """Return ``(N P)^-beta``, divided by its maximum, for positive probabilities [B] among ``present`` rows."""
    weights = (present * probabilities) ** -beta
    scaled: NDArray[np.float32] = (weights / weights.max()).astype(np.float32)
    return scaled


def sequence_magnitudes(deltas: Floats, valid: NDArray[np.bool_], *, peak_share: float = 0.9) -> Floats:
    """Return one magnitude per sequence from errors [T, B] over its valid steps.

    It is ``share max |delta| + (1 - share) mean |delta|`` (Kapturowski et al. 2019, section 2.3): the mean alone would
    hide a single surprising step.
    """
    if deltas.shape != valid.shape or not valid.any(axis=0).all():
        raise ContractError(f"expected errors and valid steps in every column, found {deltas.shape}, {valid.shape}")
    sizes = np.where(valid, np.abs(deltas), 0.0)
    mean = sizes.sum(axis=0) / valid.sum(axis=0)
    magnitudes: Floats = peak_share * sizes.max(axis=0) + (1.0 - peak_share) * mean
    return magnitudes


def _distinct(rows: Rows) -> Rows:
    if len(distinct := np.unique(rows)) != len(rows):
        raise ContractError("rows to add or remove must be distinct")
    return distinct
