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
from dataclasses import dataclass
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
from simic.numerics.regret import IMPOSSIBLE

__all__ = [
    "ActionDistribution",
    "LogProb",
    "MaskTensors",
    "equal_noise_sum",
    "head_mean",
    "logits_of",
    "mixture",
    "relevant_heads",
]

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


@dataclass(frozen=True)
class ActionDistribution:
    """The mixture for every graph of a batch; its methods are those of ``sampling.FactoredDistribution``, and more.

    Actions are int [N, A], -1 where irrelevant. Every call computes its own tables: a gradient has the same bits,
    whatever else a loss asks of the distribution.
    """

    output: NetworkOutput
    slot_ptr: Tensor
    """int64 [N + 1]"""
    masks: MaskTensors
    exploration: float
    most_slots: int | None = None
    """M where it is known; None reads it from the device."""

    def log_prob(self, actions: Tensor) -> LogProb:
        """Return the log-probabilities of ``actions`` [N, A]."""
        chosen = [
            table.gather(1, actions[:, HEAD_INDEX[head], None].long().clamp(min=0)).squeeze(1)
            for head, table in self._tables(actions).items()
        ]
        heads = torch.where(relevant_heads(actions), torch.stack(chosen, dim=1), 0.0)
        return LogProb(heads, heads.sum(1))

    def log_probs(self, actions: Tensor) -> Tensor:
        """Return the joint log-probabilities [N, T] of T ``actions`` of each graph, int [N, T, A].

        The tables of all operations and slots are computed once, instead of once for each action.
        """
        taken = actions.long().clamp(min=0)
        ops, slots = taken[..., HEAD_INDEX[Head.OP]], taken[..., HEAD_INDEX[Head.SLOT]]
        chosen = [self._op_table().gather(1, ops)]
        if count := len(self.output.slot):
            chosen.append(self._slot_tables()[torch.arange(len(ops), device=ops.device).unsqueeze(1), ops, slots])
            rows = (self.slot_ptr[:-1].unsqueeze(1) + slots).clamp(max=count - 1)
            legal = self.masks.blueprint[row_owners(self.slot_ptr, count)]
            for head, table in self._mixtures(_factors(self.output), legal).items():
                chosen.append(table[rows, taken[..., HEAD_INDEX[head]]])
        relevant = _RELEVANT.to(ops.device)[ops][..., : len(chosen)]
        return torch.where(relevant, torch.stack(chosen, dim=-1), 0.0).sum(-1)

    def entropy(self, actions: Tensor) -> Tensor:
        """Return entropies [N, A] in nats, given the taken operation and slot; 0 where irrelevant.

        Average with ``head_mean``, which ignores irrelevant entries.
        """
        entropies = [-(table.exp() * table).sum(1) for table in self._tables(actions).values()]
        return torch.where(relevant_heads(actions), torch.stack(entropies, dim=1), 0.0)

    def kl(self, other: ActionDistribution, actions: Tensor) -> Tensor:
        """Return KL(self || other) [N, A] in nats of each head given the taken operation and slot; 0 where irrelevant.

        Both are of the same graphs. The joint KL is the sum over heads, so an irrelevant head cannot inflate it.
        """
        ours, theirs = self._tables(actions), other._tables(actions)
        divergences = [(ours[head].exp() * (ours[head] - theirs[head])).sum(1) for head in HEADS]
        return torch.where(relevant_heads(actions), torch.stack(divergences, dim=1), 0.0)

    def sample(self, uniforms: NDArray[np.float64]) -> Decisions:
        """Sample by inverse CDF of ``uniforms`` [N, A], with the mixture's log-probabilities."""
        return sampling.sample(self, uniforms)

    def ops(self) -> NDArray[np.float64]:
        """Return p(op) [N, ops]."""
        return _probabilities(self._op_table())

    def slots(self, ops: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return p(slot | op) [N, M]."""
        return _probabilities(self._slot_table(torch.from_numpy(ops)))

    def factors(self, slots: NDArray[np.int64]) -> Mapping[Head, NDArray[np.float64]]:
        """Return p(choice | slot) [N, C] of the heads that depend on the slot."""
        return {head: _probabilities(table) for head, table in self._factor_tables(torch.from_numpy(slots)).items()}

    def _tables(self, actions: Tensor) -> dict[Head, Tensor]:
        """Log-probabilities [N, C] of every head given the actions' operation and slot, in the order of ``HEADS``."""
        taken = actions.long().clamp(min=0)
        ops, slots = taken[:, HEAD_INDEX[Head.OP]], taken[:, HEAD_INDEX[Head.SLOT]]
        return {Head.OP: self._op_table(), Head.SLOT: self._slot_table(ops), **self._factor_tables(slots)}

    def _op_table(self) -> Tensor:
        """Return [N, ops]."""
        return mixture(self.output.op, self.masks.op, self.exploration)

    def _slot_tables(self) -> Tensor:
        """Return [N, ops, M]: ``_slot_table`` of every operation; at least one graph has a slot."""
        rows, exists = self._slot_rows()
        available = (self.masks.slot[rows] & exists.unsqueeze(2)).transpose(1, 2)
        logits = self.output.slot[rows].transpose(1, 2)
        table = mixture(logits.flatten(0, 1), available.flatten(0, 1), self.exploration)
        return table.view(len(rows), len(OPS), -1)

    def _slot_table(self, ops: Tensor) -> Tensor:
        """Return [N, M]: the operation's pointer over the slots of each graph, as log-probabilities."""
        rows, exists = self._slot_rows()
        if not len(self.output.slot):
            return torch.zeros(exists.shape, device=self.slot_ptr.device)
        column = ops.unsqueeze(1).expand_as(rows)
        return mixture(self.output.slot[rows, column], self.masks.slot[rows, column] & exists, self.exploration)

    def _slot_rows(self) -> tuple[Tensor, Tensor]:
        """Return the rows [N, M] of each graph's slots, M at least 1, and bool [N, M]: which of them exist."""
        lengths, most = self.slot_ptr.diff(), self.most_slots
        if most is None:
            most = int(lengths.max()) if len(lengths) else 0
        place = torch.arange(max(most, 1), device=lengths.device)
        rows = (self.slot_ptr[:-1].unsqueeze(1) + place).clamp(max=len(self.output.slot) - 1)
        return rows, place < lengths.unsqueeze(1)

    def _factor_tables(self, slots: Tensor) -> dict[Head, Tensor]:
        """Return log-probabilities [N, C] of the heads that depend on the chosen slot [N]."""
        return self._mixtures(_factor_logits(self.output, self.slot_ptr, slots), self.masks.blueprint)

    def _mixtures(self, logits: Mapping[Head, Tensor], blueprints: Tensor) -> dict[Head, Tensor]:
        """Return log-probabilities of ``logits`` [R, C] per head; ``blueprints`` bool [R, K] are available."""
        return {
            head: mixture(
                values,
                blueprints if head is Head.BLUEPRINT else torch.ones_like(values, dtype=torch.bool),
                self.exploration,
            )
            for head, values in logits.items()
        }


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


def _probabilities(table: Tensor) -> NDArray[np.float64]:
    probabilities: NDArray[np.float64] = table.detach().double().exp().cpu().numpy()
    return probabilities


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
    policy = functional.log_softmax(logits.masked_fill(~usable, IMPOSSIBLE), dim=1)
    if exploration == 0.0:
        return policy
    uniform = math.log(exploration) - usable.sum(1, keepdim=True).to(logits.dtype).log()
    floor = uniform.expand_as(logits).masked_fill(~usable, IMPOSSIBLE)
    return torch.logaddexp(policy + math.log1p(-exploration), floor)
