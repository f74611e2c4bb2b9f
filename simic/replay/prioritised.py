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

from simic.contracts.errors import ContractViolation
from simic.replay.sumtree import SumTree, refuse_unless_weights
from simic.runtime.seeds import generator

__all__ = ["Draw", "Prioritisation", "PrioritisedSampler", "importance_weights", "sequence_magnitudes"]

Rows = NDArray[np.int64]
Floats = NDArray[np.float64]

FIRST_MAX = 1.0
"""The priority of newcomers before any magnitude is known."""
_LEAST_EPS = 1e-9


class Prioritisation(NamedTuple):
    """The exponents; see the module's formulas."""

    alpha: float = 0.6
    """0 is uniform, 1 is proportional."""
    beta: float = 0.4
    """Where the correction begins; 1 is a full one."""
    eps: float = 0.01
    """Added to every magnitude, so that no present row is ever out of reach."""
    anneal_draws: int = 0
    """Draws over which beta rises to 1 on a straight line, and stays; 0 keeps ``beta`` for ever."""
    max_decay: float = 1.0
    """Per update, what becomes of the greatest priority that newcomers enter with: 1 never forgets one outlier,
    less lets it fall back to what is being seen now."""

    def checked(self) -> Prioritisation:
        """This, or ContractViolation for a value without a meaning."""
        shares = {"alpha": self.alpha, "beta": self.beta}
        wrong = {name: value for name, value in shares.items() if not 0.0 <= value <= 1.0}
        if not _LEAST_EPS <= self.eps <= 1.0:
            wrong["eps"] = self.eps
        if self.anneal_draws < 0:
            wrong["anneal_draws"] = self.anneal_draws
        if not 0.0 < self.max_decay <= 1.0:
            wrong["max_decay"] = self.max_decay
        if wrong:
            raise ContractViolation(
                f"prioritisation out of range: {wrong}; alpha and beta lie in [0, 1], eps in [1e-9, 1], "
                "anneal_draws is not negative, max_decay lies in (0, 1]"
            )
        return self

    def beta_after(self, draws: int) -> float:
        """Beta of the draw that follows ``draws`` earlier ones."""
        if not self.anneal_draws:
            return self.beta
        return self.beta + (1.0 - self.beta) * min(1.0, draws / self.anneal_draws)


class Draw(NamedTuple):
    """What came up, and how much each may count."""

    rows: Rows
    """[B]"""
    weights: NDArray[np.float32]
    """[B] in (0, 1]."""


class PrioritisedSampler:
    """Priorities of the rows 0 .. capacity - 1, of which only present ones are drawn."""

    def __init__(self, capacity: int, *, seed: int, settings: Prioritisation | None = None) -> None:
        self._settings = (settings or Prioritisation()).checked()
        self._tree = SumTree(capacity)
        self._rng = generator(seed, "prioritised")
        self._present = 0
        self._draws = 0
        self._max = FIRST_MAX

    def __len__(self) -> int:
        """Rows present."""
        return self._present

    @property
    def size_bytes(self) -> int:
        """Bytes of the arrays held."""
        return self._tree.size_bytes

    @property
    def beta(self) -> float:
        """Of the next draw."""
        return self._settings.beta_after(self._draws)

    @property
    def max_priority(self) -> float:
        """What newcomers enter with: a magnitude plus eps, or 1 before any was told."""
        return self._max

    def add(self, rows: Rows) -> None:
        """Make absent ``rows`` present."""
        distinct = _distinct(rows)
        if (already := self._tree.get(distinct) > 0.0).any():
            raise ContractViolation(f"row {distinct[already][0]} is present already; remove it before it is reused")
        self._tree.set(distinct, np.full(len(distinct), self._max**self._settings.alpha))
        self._present += len(distinct)

    def remove(self, rows: Rows) -> None:
        """Make present ``rows`` absent."""
        distinct = _distinct(rows)
        self._require_present(distinct)
        self._tree.set(distinct, np.zeros(len(distinct)))
        self._present -= len(distinct)

    def draw(self, count: int) -> Draw:
        """``count`` independent rows and their weights; ContractViolation if no row is present."""
        if count < 1:
            raise ContractViolation(f"expected a draw of at least one row, found {count}")
        total = self._tree.total
        rows = self._tree.find(self._rng.random(count) * total)
        weights = importance_weights(self._tree.get(rows) / total, self._present, self.beta)
        self._draws += 1
        return Draw(rows, weights)

    def update(self, rows: Rows, magnitudes: Floats) -> None:
        """New |delta| [B] of present ``rows``; refuses NaN, infinite and negative ones and changes nothing then."""
        if rows.shape != magnitudes.shape:
            raise ContractViolation(f"{rows.shape} rows but {magnitudes.shape} magnitudes")
        if not len(rows):
            return
        refuse_unless_weights(magnitudes)
        self._require_present(rows)
        priorities = magnitudes + self._settings.eps
        self._tree.put(rows, priorities**self._settings.alpha)
        self._max = max(self._max * self._settings.max_decay, float(priorities.max()))

    def probabilities(self) -> Floats:
        """P [C]: of one draw; absent rows have 0."""
        weights = self._tree.weights()
        return weights / self._tree.total if self._present else weights

    def get_state(self) -> dict[str, Any]:
        """Arrays and plain JSON for a checkpoint."""
        return {
            "leaves": self._tree.weights(),
            "rng": json.loads(json.dumps(self._rng.bit_generator.state)),
            "draws": self._draws,
            "max_priority": self._max,
        }

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Go on where ``get_state`` was called: the same draws, bit for bit. What does not fit is refused first."""
        try:
            leaves = np.asarray(state["leaves"], dtype=np.float64)
            draws, greatest = int(state["draws"]), float(state["max_priority"])
            bits = np.random.PCG64()
            bits.state = state["rng"]
        except (KeyError, TypeError, ValueError) as error:
            raise ContractViolation(f"not the state of a prioritised sampler: {error!r}") from error
        if draws < 0 or not 0.0 < greatest < np.inf:
            raise ContractViolation(f"not the state of a prioritised sampler: draws {draws}, max_priority {greatest}")
        self._tree.replace_all(leaves)
        self._rng = np.random.Generator(bits)
        self._present, self._draws, self._max = int((leaves > 0.0).sum()), draws, greatest

    def _require_present(self, rows: Rows) -> None:
        if (absent := self._tree.get(rows) <= 0.0).any():
            raise ContractViolation(f"row {rows[absent][0]} is not present; it was never added or has been removed")


def importance_weights(probabilities: Floats, present: int, beta: float) -> NDArray[np.float32]:
    """``(N P)^-beta`` over its greatest value, for the positive probabilities [B] of a draw from ``present`` rows."""
    weights = (present * probabilities) ** -beta
    scaled: NDArray[np.float32] = (weights / weights.max()).astype(np.float32)
    return scaled


def sequence_magnitudes(deltas: Floats, valid: NDArray[np.bool_], *, peak_share: float = 0.9) -> Floats:
    """One magnitude per sequence from errors [T, B]: ``share max |delta| + (1 - share) mean |delta|`` over valid steps.

    Kapturowski et al. 2019, section 2.3: the mean alone washes out the one step that was surprising.
    """
    if deltas.shape != valid.shape or not valid.any(axis=0).all():
        raise ContractViolation(f"expected errors and valid steps in every column, found {deltas.shape}, {valid.shape}")
    sizes = np.where(valid, np.abs(deltas), 0.0)
    mean = sizes.sum(axis=0) / valid.sum(axis=0)
    magnitudes: Floats = peak_share * sizes.max(axis=0) + (1.0 - peak_share) * mean
    return magnitudes


def _distinct(rows: Rows) -> Rows:
    if len(distinct := np.unique(rows)) != len(rows):
        raise ContractViolation("rows to add or remove must be distinct")
    return distinct
