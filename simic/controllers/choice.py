"""Drawing factored actions from probability tables: the one way in which any controller makes a choice.

Shapes: N hosts, S slots of all hosts, M the most slots of one host, K blueprints, C choices of a head, A heads.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from simic.contracts.actions import HEADS, Head
from simic.contracts.batches import HEAD_INDEX, Decisions, Masks, relevance

__all__ = ["Conditionals", "Tables", "certain", "decisive", "pad_slots", "sample", "uniform_over"]

Array = NDArray[Any]
Choose = Callable[[Head, NDArray[np.float64]], tuple[Array, Array]]
"""From a head's table [N, C] to the choices [N] and their log-probabilities [N]."""


class Conditionals(Protocol):
    """A factored distribution, asked in the order in which an action is made; every row sums to 1."""

    def ops(self) -> NDArray[np.float64]:
        """[N, ops]"""

    def slots(self, ops: NDArray[np.int64]) -> NDArray[np.float64]:
        """[N, M] given the operation; rows of operations without a slot are ignored."""

    def factors(self, slots: NDArray[np.int64]) -> Mapping[Head, NDArray[np.float64]]:
        """[N, C] per remaining head given the slot (0 where there is none)."""


@dataclass(frozen=True)
class Tables:
    """A scripted distribution: given operations, uniform slots and blueprints, and fixed shares of the rest."""

    op: NDArray[np.float64]
    """[N, ops]; 0 for what is illegal."""
    masks: Masks
    slot_ptr: NDArray[np.int64]
    shares: Mapping[Head, tuple[float, ...]]
    """Of alpha target, speed, curve and tempo; each sums to 1."""

    def ops(self) -> NDArray[np.float64]:
        """As given."""
        return self.op

    def slots(self, ops: NDArray[np.int64]) -> NDArray[np.float64]:
        """Uniform over the slots the operation may address."""
        legal = pad_slots(self.masks.slot, self.slot_ptr)
        return uniform_over(np.take_along_axis(legal, ops[:, None, None], axis=2)[:, :, 0])

    def factors(self, slots: NDArray[np.int64]) -> Mapping[Head, NDArray[np.float64]]:
        """Uniform over legal blueprints; the rest alike for every host."""
        tables = {head: np.tile(shares, (len(slots), 1)) for head, shares in self.shares.items()}
        return {Head.BLUEPRINT: uniform_over(self.masks.blueprint), **tables}


def sample(distribution: Conditionals, uniforms: NDArray[np.float64]) -> Decisions:
    """Inverse CDF of ``uniforms`` [N, A]: the same numbers give the same actions, and their exact log-probabilities."""
    return _decide(distribution, _drawing(uniforms))


def decisive(distribution: Conditionals, uniforms: NDArray[np.float64]) -> Decisions:
    """The operation drawn as by ``sample``, and with certainty the likeliest choice of every head that hangs on it.

    Whether to act now is a rate: a policy that would keep a seed with probability 0.4 in every epoch keeps it soon
    when drawn from, and never when only its likeliest operation counts. What to do then is a choice, which noise
    only harms.
    """
    draw = _drawing(uniforms)

    def choose(head: Head, table: NDArray[np.float64]) -> tuple[Array, Array]:
        if head is Head.OP:
            return draw(head, table)
        return np.argmax(table, axis=1), np.zeros(len(table))

    return _decide(distribution, choose)


def certain(actions: NDArray[np.int16]) -> Decisions:
    """Actions [N, A] of a controller that leaves nothing to chance."""
    relevant = relevance(actions[:, 0])
    return Decisions(
        np.where(relevant, actions, -1).astype(np.int16), np.where(relevant, 0.0, np.nan).astype(np.float32)
    )


def pad_slots(column: Array, slot_ptr: NDArray[np.int64]) -> Array:
    """[S, ...] -> [N, M, ...]: a ragged slot column as a rectangle, False or 0 where there is no slot."""
    lengths = np.diff(slot_ptr)
    width = max(int(lengths.max(initial=0)), 1)
    out = np.zeros((len(lengths), width, *column.shape[1:]), dtype=column.dtype)
    out[np.arange(width) < lengths[:, None]] = column
    return out


def uniform_over(available: NDArray[np.bool_]) -> NDArray[np.float64]:
    """[N, C]: equal shares of what is available; zeros where nothing is."""
    shares: NDArray[np.float64] = available / np.maximum(available.sum(axis=1, keepdims=True), 1)
    return shares


def _drawing(uniforms: NDArray[np.float64]) -> Choose:
    def draw(head: Head, table: NDArray[np.float64]) -> tuple[Array, Array]:
        cumulative = np.cumsum(table, axis=1)
        level = uniforms[:, HEAD_INDEX[head], None] * cumulative[:, -1:]
        last = table.shape[1] - 1 - np.argmax(table[:, ::-1] > 0.0, axis=1)
        index = np.minimum((cumulative <= level).sum(axis=1), last)
        with np.errstate(divide="ignore"):
            return index, np.log(np.take_along_axis(table, index[:, None], axis=1)[:, 0])

    return draw


def _decide(distribution: Conditionals, choose: Choose) -> Decisions:
    chosen: dict[Head, Array] = {}
    log_probs: dict[Head, Array] = {}
    chosen[Head.OP], log_probs[Head.OP] = choose(Head.OP, distribution.ops())
    ops = chosen[Head.OP]
    chosen[Head.SLOT], log_probs[Head.SLOT] = choose(Head.SLOT, distribution.slots(ops))
    has_slot = relevance(ops)[:, HEAD_INDEX[Head.SLOT]]
    slots = np.where(has_slot, chosen[Head.SLOT], 0)
    for head, table in distribution.factors(slots).items():
        chosen[head], log_probs[head] = choose(head, table)
    relevant = relevance(ops)
    actions = np.stack([chosen[head] for head in HEADS], axis=1)
    logs = np.stack([log_probs[head] for head in HEADS], axis=1)
    return Decisions(
        np.where(relevant, actions, -1).astype(np.int16), np.where(relevant, logs, np.nan).astype(np.float32)
    )
