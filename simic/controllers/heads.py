"""The factored, masked action distribution of the network's outputs.

The order of the heads is op, slot | op, then blueprint, alpha target, speed, curve and tempo | slot. Every head is

    pi(a) = (1 - e) softmax(logits over available)(a) + e / #available            (e = exploration)

a smooth mixture: unlike a clamped floor it gives every logit a gradient, and acting and learning use the same formula.
Heads that an operation does not use are irrelevant: log-probability 0, entropy 0, KL 0, no gradient. The table of an
irrelevant head without available choices is finite and unused.

Shapes: N graphs, S slots, M the most slots of one graph, K blueprints, C choices of a head, A heads.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from simic.contracts.actions import HEADS, OPS, RELEVANT_HEADS, Head
from simic.contracts.batches import HEAD_INDEX, Decisions, Masks
from simic.controllers import sampling
from simic.controllers.network import NetworkOutput
from simic.numerics.ragged import row_owners

__all__ = [
    "LogProb",
    "MaskTensors",
    "distribution",
    "entropy",
    "equal_noise_sum",
    "head_mean",
    "kl",
    "log_prob",
    "log_probs",
    "logits_of",
    "mixture",
    "most_slots_of",
    "relevant_heads",
    "sample",
    "sample_op_greedy_factors",
]

_IMPOSSIBLE = -1e30
"""Replaces log 0: finite, so that 0 * log 0 and its gradient are 0."""

_RELEVANT = torch.tensor([[head in RELEVANT_HEADS[op] for head in HEADS] for op in OPS], device="cpu")


class MaskTensors(NamedTuple):
    """Action masks as tensors."""

    op: Tensor
    """bool [N, ops]"""
    slot: Tensor
    """bool [S, ops]"""
    blueprint: Tensor
    """bool [N, K]"""

    @staticmethod
    def of(masks: Masks) -> MaskTensors:
        """Copy NumPy masks to tensors."""
        return MaskTensors(torch.tensor(masks.op), torch.tensor(masks.slot), torch.tensor(masks.blueprint))


class LogProb(NamedTuple):
    """Log-probabilities (natural logarithm) of actions."""

    heads: Tensor
    """[N, A]; 0 where irrelevant."""
    joint: Tensor
    """[N]: sum over the relevant heads."""


def relevant_heads(actions: Tensor) -> Tensor:
    """Return bool [N, A]: the heads that the operations of actions int [N, A] use."""
    return _RELEVANT.to(actions.device)[actions[:, 0].long()]


def log_prob(
    output: NetworkOutput,
    slot_ptr: Tensor,
    masks: MaskTensors,
    actions: Tensor,
    exploration: float,
    most_slots: int | None = None,
) -> LogProb:
    """Return log-probabilities of ``actions`` int [N, A] (-1 where irrelevant) under the mixture.

    Here and below, who knows the largest number of slots of one graph says it as ``most_slots``, else it is read from
    the device.
    """
    relevant = relevant_heads(actions)
    tables = _tables(output, slot_ptr, masks, actions, exploration, most_slots)
    chosen = [
        table.gather(1, actions[:, HEAD_INDEX[head], None].long().clamp(min=0)).squeeze(1)
        for head, table in tables.items()
    ]
    heads = torch.where(relevant, torch.stack(chosen, dim=1), 0.0)
    return LogProb(heads, heads.sum(1))


def log_probs(
    output: NetworkOutput, slot_ptr: Tensor, masks: MaskTensors, actions: Tensor, exploration: float
) -> Tensor:
    """Return the joint log-probabilities [N, T] of T ``actions`` of each graph, int [N, T, A], as ``log_prob``.

    The tables of all operations and slots are computed once, instead of once for each action.
    """
    taken = actions.long().clamp(min=0)
    ops, slots = taken[..., HEAD_INDEX[Head.OP]], taken[..., HEAD_INDEX[Head.SLOT]]
    chosen = [mixture(output.op, masks.op, exploration).gather(1, ops)]
    if len(output.slot):
        pointers = _slot_tables(output, slot_ptr, masks, exploration)
        chosen.append(pointers[torch.arange(len(ops), device=ops.device).unsqueeze(1), ops, slots])
        rows = (slot_ptr[:-1].unsqueeze(1) + slots).clamp(max=len(output.slot) - 1)
        owners = row_owners(slot_ptr, len(output.slot))
        for head, values in _factors(output).items():
            available = masks.blueprint[owners] if head is Head.BLUEPRINT else torch.ones_like(values, dtype=torch.bool)
            chosen.append(mixture(values, available, exploration)[rows, taken[..., HEAD_INDEX[head]]])
    relevant = _RELEVANT.to(ops.device)[ops][..., : len(chosen)]
    return torch.where(relevant, torch.stack(chosen, dim=-1), 0.0).sum(-1)


def logits_of(output: NetworkOutput, slot_ptr: Tensor, actions: Tensor) -> Tensor:
    """Return the unmasked logits [N, A] of ``actions`` int [N, A]; 0 where irrelevant."""
    taken = actions.long().clamp(min=0)
    ops, slots = taken[:, HEAD_INDEX[Head.OP]], taken[:, HEAD_INDEX[Head.SLOT]]
    pointers = output.slot if len(output.slot) else output.op.new_zeros(1, len(OPS))
    pointer = pointers[(slot_ptr[:-1] + slots).clamp(max=len(pointers) - 1), ops]
    tables = {Head.OP: output.op, **_factor_logits(output, slot_ptr, slots)}
    chosen = [
        pointer if head is Head.SLOT else tables[head].gather(1, taken[:, HEAD_INDEX[head], None]).squeeze(1)
        for head in HEADS
    ]
    return torch.where(relevant_heads(actions), torch.stack(chosen, dim=1), 0.0)


def entropy(
    output: NetworkOutput,
    slot_ptr: Tensor,
    masks: MaskTensors,
    actions: Tensor,
    exploration: float,
    most_slots: int | None = None,
) -> Tensor:
    """Return entropies [N, A] in nats, given the taken operation and slot; 0 where irrelevant.

    Average with ``head_mean``, which ignores irrelevant entries.
    """
    tables = _tables(output, slot_ptr, masks, actions, exploration, most_slots)
    entropies = [-(table.exp() * table).sum(1) for table in tables.values()]
    return torch.where(relevant_heads(actions), torch.stack(entropies, dim=1), 0.0)


def kl(
    output: NetworkOutput,
    other: NetworkOutput,
    slot_ptr: Tensor,
    masks: MaskTensors,
    actions: Tensor,
    exploration: float,
    most_slots: int | None = None,
) -> Tensor:
    """Return KL(output || other) [N, A] of each head given the taken operation and slot; 0 where irrelevant.

    The joint KL is the sum over heads, so an irrelevant head cannot inflate it.
    """
    ours = _tables(output, slot_ptr, masks, actions, exploration, most_slots)
    theirs = _tables(other, slot_ptr, masks, actions, exploration, most_slots)
    divergences = [(ours[head].exp() * (ours[head] - theirs[head])).sum(1) for head in HEADS]
    return torch.where(relevant_heads(actions), torch.stack(divergences, dim=1), 0.0)


def head_mean(values: Tensor, relevant: Tensor) -> Tensor:
    """Return [A]: the mean of ``values`` [N, A] over rows where the head is ``relevant``; 0 if there is none."""
    return torch.where(relevant, values, 0.0).sum(0) / relevant.sum(0).clamp(min=1)


def equal_noise_sum(values: Tensor, relevant: Tensor) -> Tensor:
    """Return the sum over heads of ``values`` [N, A], each head's sum over its k relevant rows divided by sqrt(N k).

    A mean over all N rows would leave a head that is relevant once per episode almost without gradient; a mean over
    its k rows would have sqrt(N / k) times the noise of the others. With sqrt(N k), equal noise per row gives equal
    noise in every head.
    """
    rows = torch.where(relevant, values, 0.0).sum(0)
    return (rows / (len(values) * relevant.sum(0).clamp(min=1)).sqrt()).sum()


def distribution(
    output: NetworkOutput, slot_ptr: Tensor, masks: MaskTensors, exploration: float
) -> sampling.FactoredDistribution:
    """Return the mixture from which ``sample`` draws, as tables of probabilities."""
    return _Mixture(output, slot_ptr, masks, exploration)


def sample(
    output: NetworkOutput,
    slot_ptr: Tensor,
    masks: MaskTensors,
    uniforms: NDArray[np.float64],
    exploration: float,
) -> Decisions:
    """Sample from the mixture by inverse CDF, with the mixture's log-probabilities."""
    return sampling.sample(_Mixture(output, slot_ptr, masks, exploration), uniforms)


def sample_op_greedy_factors(
    output: NetworkOutput, slot_ptr: Tensor, masks: MaskTensors, uniforms: NDArray[np.float64]
) -> Decisions:
    """Sample the operation without exploration and take the most likely choice of every other head."""
    return sampling.sample_op_greedy_factors(_Mixture(output, slot_ptr, masks, 0.0), uniforms)


class _Mixture:
    """The mixture as a ``FactoredDistribution``."""

    def __init__(self, output: NetworkOutput, slot_ptr: Tensor, masks: MaskTensors, exploration: float) -> None:
        self._output, self._slot_ptr, self._masks, self._exploration = output, slot_ptr, masks, exploration

    def ops(self) -> NDArray[np.float64]:
        return _probabilities(mixture(self._output.op, self._masks.op, self._exploration))

    def slots(self, ops: NDArray[np.int64]) -> NDArray[np.float64]:
        chosen = torch.from_numpy(ops)
        return _probabilities(_slot_table(self._output, self._slot_ptr, self._masks, chosen, self._exploration))

    def factors(self, slots: NDArray[np.int64]) -> Mapping[Head, NDArray[np.float64]]:
        chosen = torch.from_numpy(slots)
        tables = _factor_tables(self._output, self._slot_ptr, self._masks, chosen, self._exploration)
        return {head: _probabilities(table) for head, table in tables.items()}


def _probabilities(table: Tensor) -> NDArray[np.float64]:
    probabilities: NDArray[np.float64] = table.detach().double().exp().cpu().numpy()
    return probabilities


def _tables(
    output: NetworkOutput,
    slot_ptr: Tensor,
    masks: MaskTensors,
    actions: Tensor,
    exploration: float,
    most_slots: int | None,
) -> dict[Head, Tensor]:
    """Log-probabilities [N, C] of every head given the actions' operation and slot, in the order of ``HEADS``."""
    taken = actions.long().clamp(min=0)
    ops, slots = taken[:, HEAD_INDEX[Head.OP]], taken[:, HEAD_INDEX[Head.SLOT]]
    return {
        Head.OP: mixture(output.op, masks.op, exploration),
        Head.SLOT: _slot_table(output, slot_ptr, masks, ops, exploration, most_slots),
        **_factor_tables(output, slot_ptr, masks, slots, exploration),
    }


def most_slots_of(slot_ptr: Tensor) -> int:
    """Return the largest number of slots of one graph, read from the device; 0 without graphs."""
    return int(slot_ptr.diff().max()) if len(slot_ptr) > 1 else 0


def _slot_tables(output: NetworkOutput, slot_ptr: Tensor, masks: MaskTensors, exploration: float) -> Tensor:
    """Return [N, ops, M]: ``_slot_table`` of every operation; at least one graph has a slot."""
    width = most_slots_of(slot_ptr)
    place = torch.arange(width, device=slot_ptr.device)
    exists = place < slot_ptr.diff().unsqueeze(1)
    rows = (slot_ptr[:-1].unsqueeze(1) + place).clamp(max=len(output.slot) - 1)
    logits, available = output.slot[rows].transpose(1, 2), (masks.slot[rows] & exists.unsqueeze(2)).transpose(1, 2)
    return mixture(logits.flatten(0, 1), available.flatten(0, 1), exploration).view(len(rows), len(OPS), width)


def _slot_table(
    output: NetworkOutput,
    slot_ptr: Tensor,
    masks: MaskTensors,
    ops: Tensor,
    exploration: float,
    most_slots: int | None = None,
) -> Tensor:
    """Return [N, M]: the operation's pointer over the slots of each graph, as log-probabilities."""
    lengths = slot_ptr.diff()
    width = max(most_slots_of(slot_ptr) if most_slots is None else most_slots, 1)
    place = torch.arange(width, device=slot_ptr.device)
    exists = place < lengths.unsqueeze(1)
    if not len(output.slot):
        return torch.zeros(exists.shape, device=slot_ptr.device)
    rows = (slot_ptr[:-1].unsqueeze(1) + place).clamp(max=len(output.slot) - 1)
    column = ops.unsqueeze(1).expand_as(rows)
    return mixture(output.slot[rows, column], masks.slot[rows, column] & exists, exploration)


def _factor_tables(
    output: NetworkOutput, slot_ptr: Tensor, masks: MaskTensors, slots: Tensor, exploration: float
) -> dict[Head, Tensor]:
    """Return log-probabilities [N, C] of the heads that depend on the chosen slot [N]."""
    logits = _factor_logits(output, slot_ptr, slots)
    everything = {head: torch.ones_like(values, dtype=torch.bool) for head, values in logits.items()}
    available = {**everything, Head.BLUEPRINT: masks.blueprint}
    return {head: mixture(values, available[head], exploration) for head, values in logits.items()}


def _factor_logits(output: NetworkOutput, slot_ptr: Tensor, slots: Tensor) -> dict[Head, Tensor]:
    """Return logits [N, C] of the heads that depend on the chosen slot [N]; zeros if no graph has a slot."""
    logits = _factors(output)
    if not len(output.slot):
        return {head: values.new_zeros(len(slots), values.shape[1]) for head, values in logits.items()}
    rows = (slot_ptr[:-1] + slots).clamp(max=len(output.slot) - 1)
    return {head: values[rows] for head, values in logits.items()}


def _factors(output: NetworkOutput) -> dict[Head, Tensor]:
    """Return logits [S, C] of the heads that depend on the slot, in the order of ``HEADS``."""
    return {
        Head.BLUEPRINT: output.blueprint,
        Head.ALPHA_TARGET: output.target,
        Head.ALPHA_SPEED: output.speed,
        Head.ALPHA_CURVE: output.curve,
        Head.TEMPO: output.tempo,
    }


def mixture(logits: Tensor, available: Tensor, exploration: float) -> Tensor:
    """Return the logarithm of the mixture [N, C]; a row without available choices counts as fully available."""
    usable = available | ~available.any(1, keepdim=True)
    policy = functional.log_softmax(logits.masked_fill(~usable, _IMPOSSIBLE), dim=1)
    if exploration == 0.0:
        return policy
    uniform = math.log(exploration) - usable.sum(1, keepdim=True).to(logits.dtype).log()
    floor = uniform.expand_as(logits).masked_fill(~usable, _IMPOSSIBLE)
    return torch.logaddexp(policy + math.log1p(-exploration), floor)
