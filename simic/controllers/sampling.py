"""Sampling of factored actions from probability tables, shared by all controllers.

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

__all__ = [
    "FactoredDistribution",
    "Tables",
    "deterministic",
    "greedy_after",
    "joint_log_prob",
    "pad_slots",
    "sample",
    "sample_after",
    "sample_op_greedy_factors",
    "uniform_over",
]

Array = NDArray[Any]
Choose = Callable[[Head, NDArray[np.float64]], tuple[Array, Array]]
"""Maps a head's table [N, C] to choices [N] and log-probabilities [N]."""


class FactoredDistribution(Protocol):
    """A factored distribution p(op) p(slot | op) p(others | slot); every row of a table sums to 1."""

    def ops(self) -> NDArray[np.float64]:
        """Return p(op) [N, ops]."""

    def slots(self, ops: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return p(slot | op) [N, M]; rows of operations without a slot are ignored."""

    def factors(self, slots: NDArray[np.int64]) -> Mapping[Head, NDArray[np.float64]]:
        """Return p(choice | slot) [N, C] per remaining head; the slot is 0 where there is none."""


@dataclass(frozen=True)
class Tables:
    """A scripted distribution: given operations, uniform slots and blueprints, fixed shares elsewhere."""

    op: NDArray[np.float64]
    """[N, ops]: 0 for illegal operations."""
    masks: Masks
    slot_ptr: NDArray[np.int64]
    shares: Mapping[Head, tuple[float, ...]]
    """Shares of alpha target, speed, curve and tempo; each sums to 1."""

    def ops(self) -> NDArray[np.float64]:
        """Return the given operation table."""
        return self.op

    def slots(self, ops: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return uniform tables over the slots that the operation may address."""
        legal = pad_slots(self.masks.slot, self.slot_ptr)
        return uniform_over(np.take_along_axis(legal, ops[:, None, None], axis=2)[:, :, 0])

    def factors(self, slots: NDArray[np.int64]) -> Mapping[Head, NDArray[np.float64]]:
        """Return uniform tables over legal blueprints, and the fixed shares of the other heads."""
        tables = {head: np.tile(shares, (len(slots), 1)) for head, shares in self.shares.items()}
        return {Head.BLUEPRINT: uniform_over(self.masks.blueprint), **tables}


def sample(distribution: FactoredDistribution, uniforms: NDArray[np.float64]) -> Decisions:
    """Sample actions by inverse CDF of ``uniforms`` [N, A], with their exact log-probabilities."""
    return _decide(distribution, _inverse_cdf(uniforms))


def sample_op_greedy_factors(distribution: FactoredDistribution, uniforms: NDArray[np.float64]) -> Decisions:
    """Sample the operation and take the most likely choice of every other head.

    The operation is a rate per epoch: a policy that fossilises with probability 0.4 per epoch does so soon if sampled,
    and never under argmax. The other heads are choices, which sampling noise only degrades.
    """
    draw = _inverse_cdf(uniforms)

    def choose(head: Head, table: NDArray[np.float64]) -> tuple[Array, Array]:
        if head is Head.OP:
            return draw(head, table)
        return np.argmax(table, axis=1), np.zeros(len(table))

    return _decide(distribution, choose)


def greedy_after(distribution: FactoredDistribution, ops: NDArray[np.int64]) -> Decisions:
    """Return the given operations [N] with the most likely choice of every other head.

    The log-probability of the operation is the table's, that of every other head is 0.
    """

    def choose(head: Head, table: NDArray[np.float64]) -> tuple[Array, Array]:
        if head is Head.OP:
            return ops, _log_share(table, ops)
        return np.argmax(table, axis=1), np.zeros(len(table))

    return _decide(distribution, choose)


def sample_after(
    distribution: FactoredDistribution, ops: NDArray[np.int64], uniforms: NDArray[np.float64]
) -> Decisions:
    """Return the given operations [N] with the other heads sampled by inverse CDF of ``uniforms`` [N, A]."""
    draw = _inverse_cdf(uniforms)

    def choose(head: Head, table: NDArray[np.float64]) -> tuple[Array, Array]:
        return (ops, _log_share(table, ops)) if head is Head.OP else draw(head, table)

    return _decide(distribution, choose)


def joint_log_prob(
    distribution: FactoredDistribution, actions: NDArray[np.int64], *, is_greedy: bool
) -> NDArray[np.float64]:
    """Return the joint log-probabilities [N] of ``actions`` [N, A], -1 where irrelevant; -inf if never taken.

    With ``is_greedy`` they are those of ``sample_op_greedy_factors``, else those of ``sample``.
    """

    def choose(head: Head, table: NDArray[np.float64]) -> tuple[Array, Array]:
        chosen = actions[:, HEAD_INDEX[head]]
        if is_greedy and head is not Head.OP:
            return chosen, np.where(chosen == np.argmax(table, axis=1), 0.0, -np.inf)
        return chosen, _log_share(table, np.clip(chosen, 0, table.shape[1] - 1))

    joint = np.nansum(_decide(distribution, choose).log_probs, axis=1, dtype=np.float64)
    return np.minimum(joint, 0.0)


def deterministic(actions: NDArray[np.int16]) -> Decisions:
    """Return decisions for given actions [N, A], taken with probability 1."""
    relevant = relevance(actions[:, 0])
    return Decisions(
        np.where(relevant, actions, -1).astype(np.int16), np.where(relevant, 0.0, np.nan).astype(np.float32)
    )


def pad_slots(column: Array, slot_ptr: NDArray[np.int64]) -> Array:
    """Pad a ragged slot column [S, ...] to [N, M, ...] with False or 0."""
    lengths = np.diff(slot_ptr)
    width = max(int(lengths.max(initial=0)), 1)
    out = np.zeros((len(lengths), width, *column.shape[1:]), dtype=column.dtype)
    out[np.arange(width) < lengths[:, None]] = column
    return out


def uniform_over(available: NDArray[np.bool_]) -> NDArray[np.float64]:
    """Return equal shares [N, C] of what is available; zeros where nothing is."""
    shares: NDArray[np.float64] = available / np.maximum(available.sum(axis=1, keepdims=True), 1)
    return shares


def _inverse_cdf(uniforms: NDArray[np.float64]) -> Choose:
    def draw(head: Head, table: NDArray[np.float64]) -> tuple[Array, Array]:
        cumulative = np.cumsum(table, axis=1)
        level = uniforms[:, HEAD_INDEX[head], None] * cumulative[:, -1:]
        last = table.shape[1] - 1 - np.argmax(table[:, ::-1] > 0.0, axis=1)
        index = np.minimum((cumulative <= level).sum(axis=1), last)
        return index, _log_share(table, index)

    return draw


def _log_share(table: NDArray[np.float64], chosen: Array) -> NDArray[np.float64]:
    with np.errstate(divide="ignore"):
        log_shares: NDArray[np.float64] = np.log(np.take_along_axis(table, chosen[:, None], axis=1)[:, 0])
    return log_shares


def _decide(distribution: FactoredDistribution, choose: Choose) -> Decisions:
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
