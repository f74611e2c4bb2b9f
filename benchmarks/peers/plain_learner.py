"""V-trace as one would write it with PyTorch Geometric: a list of graphs per step, one batch of them, loops over heads.

``PlainLearner`` is the peer of ``store.batch``, ``vtrace_loss`` and ``Learner.update``. It computes the same loss with
the same weights, and no metrics. All episodes have the same length, so its time-major tensors are plain views.

Shapes: T time, B sequences, M = T B steps, S slots of the steps, A heads, C choices of a head.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch_geometric.data import Batch, HeteroData
from torch_geometric.utils import softmax

from peers.hetero_conv import HeteroConvNetwork
from simic.contracts.actions import HEADS, OPS, RELEVANT_HEADS, Head
from simic.contracts.settings.training import TrainConfig
from simic.controllers.graph import EDGE_TYPES, NODE_TYPES, GraphBatch
from simic.controllers.network import PolicyNetwork, Relation
from simic.replay.dataset import GraphDataset
from simic.replay.exports.pyg import hetero_data

__all__ = ["PlainLearner", "PlainNetwork", "graphs_of"]

RELEVANT = torch.tensor([[head in RELEVANT_HEADS[op] for head in HEADS] for op in OPS])
FACTORS = (Head.BLUEPRINT, Head.ALPHA_TARGET, Head.ALPHA_SPEED, Head.ALPHA_CURVE, Head.TEMPO)
"""Heads that depend on the chosen slot, in the order of ``HEADS``."""


class Outputs(NamedTuple):
    """Logits of the op head [M + B, ops] and of the slots [slots, sizes], and values [M + B] in points."""

    op: Tensor
    slots: Tensor
    values: Tensor


class PlainNetwork(HeteroConvNetwork):
    """The policy network on a PyG batch; one pass gives logits and values of all its graphs."""

    def outputs(self, batch: Batch) -> Outputs:
        """Return logits and values."""
        x = {node: self.normalise[node](batch[node].x) for node in NODE_TYPES}
        edges = {name: Relation(batch[name].edge_index, torch.empty(0)) for name in EDGE_TYPES}
        own, read = self.policy_encoder(x, edges), self.value_encoder(x, edges)
        ptr, owner = batch["slot"].ptr, batch["slot"].batch
        whole = GraphBatch(x["context"], x["slot"], x["layer"], ptr, batch["layer"].ptr, {}, ptr, ptr)
        fixed = {node: state.detach() for node, state in read.items()}
        op = self.op_head(torch.cat([self._summary(whole, own), self._summary(whole, fixed)], dim=1))
        slots = self.slot_head(torch.cat([own["slot"], fixed["slot"], fixed["context"][owner]], dim=1))
        raw = whole._replace(context_x=batch["context"].x)
        return Outputs(self._mask_first_epoch_germination(op, raw), slots, self._value(whole, read))


def graphs_of(store: GraphDataset) -> tuple[list[list[HeteroData]], list[HeteroData]]:
    """Return the steps of each episode and its final state, as ``PygExport`` yields them."""
    episodes, finals = [], []
    for index, (start, length) in enumerate(
        zip(store.sequences.starts.tolist(), store.sequences.lengths.tolist(), strict=True)
    ):
        episodes.append([_step(store, row) for row in range(start, start + length)])
        finals.append(hetero_data(store.table.take(torch.tensor([store.step_count + index]))))
    return episodes, finals


def _step(store: GraphDataset, row: int) -> HeteroData:
    data = hetero_data(store.table.take(torch.tensor([row])))
    slots = slice(int(store.table.slot_ptr[row]), int(store.table.slot_ptr[row + 1]))
    data["slot"].available = store.masks.slot[slots]
    data.op_available, data.blueprint_available = store.masks.op[row : row + 1], store.masks.blueprint[row : row + 1]
    data.action, data.log_prob = store.steps.actions[row : row + 1], store.steps.log_prob_behaviour[row : row + 1]
    data.reward, data.discount = store.steps.rewards[row : row + 1], store.steps.discounts[row : row + 1]
    return data


class PlainLearner:
    """AdamW on the V-trace loss over whole episodes of one length."""

    def __init__(self, network: PolicyNetwork, store: GraphDataset, config: TrainConfig, scale: float) -> None:
        self.network, self._config, self._scale = PlainNetwork(network), config, scale
        self._episodes, self._finals = graphs_of(store)
        self.groups = [self.network.policy_parameters(), self.network.value_parameters()]
        rates = (config.policy_lr, config.value_lr)
        self._optimizer = torch.optim.AdamW(
            [{"params": group, "lr": rate} for group, rate in zip(self.groups, rates, strict=True)],
            weight_decay=config.weight_decay,
        )

    def batch(self, ids: list[int]) -> tuple[Batch, Batch]:
        """Return the steps of the episodes ``ids``, and all these states with the final ones behind them."""
        steps = [step for index in ids for step in self._episodes[index]]
        # One batch of states for the network; actions, masks and rewards exist for steps only.
        exclude = ["available", "op_available", "blueprint_available", "action", "log_prob", "reward", "discount"]
        states = [*steps, *(self._finals[index] for index in ids)]
        return Batch.from_data_list(steps), Batch.from_data_list(states, exclude_keys=exclude)

    def update(self, ids: list[int]) -> Tensor:
        """Assemble, compute the loss and its gradient, clip per group and step; returns the loss."""
        self._optimizer.zero_grad()
        steps, states = self.batch(ids)
        loss = self.loss(steps, states, len(ids))
        loss.backward()
        for group in self.groups:
            nn.utils.clip_grad_norm_(group, self._config.clip_norm)
        self._optimizer.step()
        return loss.detach()

    def loss(self, steps: Batch, states: Batch, sequences: int) -> Tensor:
        """Return policy, value, entropy and cloning losses of the V-trace objective as one sum."""
        config, count = self._config, len(steps.action)
        output = self.network.outputs(states)
        tables = self._tables(output, steps)
        actions, relevant = steps.action.long(), RELEVANT[steps.action[:, 0].long()]
        log_prob, entropy = torch.zeros(count, len(HEADS)), torch.zeros(count, len(HEADS))
        log_prob[:, 1], entropy[:, 1] = self._slot_head(output, steps)
        for index, table in tables.items():
            log_prob[:, index] = table.gather(1, actions[:, [index]].clamp(min=0)).squeeze(1)
            entropy[:, index] = -(table.exp() * table).sum(1)
        log_prob, entropy = log_prob * relevant, entropy * relevant
        chosen, rows = relevant.sum(0).clamp(min=1), (sequences, -1)
        values = output.values[:count].view(rows)
        following = torch.cat([values[:, 1:], output.values[count:, None]], dim=1)
        ratios = (log_prob.detach().sum(1) - steps.log_prob).exp().view(rows)
        targets, advantages = self._vtrace(
            ratios.t(), steps.reward.view(rows).t(), steps.discount.view(rows).t(), values.t(), following.t()
        )
        weighed = (advantages.t().reshape(-1, 1) / self._scale * log_prob).sum(0) / (count * chosen).sqrt()
        scale = self.network.value_scale
        value = functional.smooth_l1_loss(values / scale, targets.t() / scale)
        spread, cloning = (entropy.sum(0) / chosen).sum(), -(log_prob.sum(0) / chosen).sum()
        return value - weighed.sum() - config.entropy_bonus * spread + config.cloning_weight * cloning

    def _tables(self, output: Outputs, steps: Batch) -> dict[int, Tensor]:
        """Return log-probabilities [M, C] of all heads but the slot."""
        parts = dict(zip(("slot", "tempo", "target", "speed", "curve", "blueprint"),
                         output.slots.split(self.network.slot_sizes, dim=1), strict=True))  # fmt: skip
        logits = {Head.BLUEPRINT: parts["blueprint"], Head.ALPHA_TARGET: parts["target"], Head.TEMPO: parts["tempo"],
                  Head.ALPHA_SPEED: parts["speed"], Head.ALPHA_CURVE: parts["curve"]}  # fmt: skip
        own = steps["slot"].ptr[:-1] + steps.action[:, 1].long().clamp(min=0)
        tables = {0: self._mixture(output.op[: len(steps.action)], steps.op_available)}
        for head in FACTORS:
            values = logits[head][own]
            mask = steps.blueprint_available if head is Head.BLUEPRINT else torch.ones_like(values, dtype=torch.bool)
            tables[HEADS.index(head)] = self._mixture(values, mask)
        return tables

    def _mixture(self, logits: Tensor, available: Tensor) -> Tensor:
        """Return log((1 - e) softmax + e / available) [M, C]; a row without choices counts as fully available."""
        share = self._config.network.exploration
        usable = available | ~available.any(1, keepdim=True)
        probabilities = logits.masked_fill(~usable, -1e30).softmax(1)
        mixed = (1.0 - share) * probabilities + share / usable.sum(1, keepdim=True)
        return torch.where(usable, mixed, 1.0).log() + torch.where(usable, 0.0, -1e30)

    def _slot_head(self, output: Outputs, steps: Batch) -> tuple[Tensor, Tensor]:
        """Return log-probability and entropy [M] of the slot, given the operation."""
        share, owner = self._config.network.exploration, steps["slot"].batch
        count, ops = len(steps.action), steps.action[:, 0].long()[owner]
        rows = torch.arange(len(owner))
        available = steps["slot"].available[rows, ops]
        some = torch.zeros(count, dtype=torch.bool).index_put((owner,), available, accumulate=True)
        usable = available | ~some[owner]
        number = torch.zeros(count).index_add(0, owner, usable.float())
        logits = output.slots[: len(owner)][rows, ops].masked_fill(~usable, -math.inf)
        mixed = (1.0 - share) * softmax(logits, owner, num_nodes=count) + share / number[owner]
        log_prob = torch.where(usable, mixed, 1.0).log()
        entropy = torch.zeros(count).index_add(0, owner, -torch.where(usable, mixed, 0.0) * log_prob)
        chosen = steps["slot"].ptr[:-1] + steps.action[:, 1].long().clamp(min=0)
        return log_prob[chosen], entropy

    @torch.no_grad()
    def _vtrace(
        self, ratios: Tensor, rewards: Tensor, discounts: Tensor, values: Tensor, following: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return targets and advantages [T, B], step by step from the end."""
        config = self._config
        rho, trace = ratios.clamp(max=config.rho_bar), config.lambda_ * ratios.clamp(max=config.c_bar)
        deltas = rho * (rewards + discounts * following - values)
        correction, vs = torch.zeros_like(values[0]), []
        for t in reversed(range(len(values))):
            correction = deltas[t] + discounts[t] * trace[t] * correction
            vs.append(values[t] + correction)
        targets = torch.stack(vs[::-1])
        after = torch.cat([targets[1:], following[-1:]])
        return targets, ratios.clamp(max=config.pg_rho_bar) * (rewards + discounts * after - values)
