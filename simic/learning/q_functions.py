"""An ensemble of action-value functions fitted to the returns of a log, and what it says about every legal action.

A network of the policy's architecture is read as a Q-function: its value plus ``POINTS`` times the logits of the
action's own heads. Slot and blueprint form one table per state, because blueprint logits belong to slots. Each network
leaves out one fold of hosts, so every step has a prediction of a network that did not see its host, and the
disagreement of the networks shows how little the log says about an action.

Shapes: N graphs, M the most slots of one graph, K blueprints, C candidates of a graph, A heads, E networks.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from simic.contracts.actions import HEADS, OPS, RELEVANT_HEADS, Head, Op
from simic.contracts.batches import HEAD_INDEX, OP_INDEX
from simic.contracts.settings.training import TrainConfig
from simic.controllers import heads
from simic.controllers.graph import GraphBatch
from simic.controllers.heads import MaskTensors
from simic.controllers.network import NetworkOutput, PolicyNetwork
from simic.learning.learner import Learner
from simic.learning.losses import Loss
from simic.learning.phases import Record
from simic.learning.rates import LrSchedule
from simic.numerics.regret import IMPOSSIBLE
from simic.replay.dataset import GraphDataset
from simic.runtime.seeds import generator

__all__ = ["Candidates", "candidates", "fit", "predictions", "q_config", "q_loss", "q_values", "supported_ops"]

RATE, DECAY = 6e-3, 1e-2
"""Peak learning rate and weight decay of the Q-functions."""
POINTS = 5.0
"""Points of return per unit of a logit."""
ERROR_CUT = 5.0
"""Points of error above which the loss grows linearly, so that single catastrophes do not dominate."""
BATCH = 256
"""Steps per update."""
GERMINATION_WEIGHT = 4.0
"""Weight of a step that germinates, against 1 for others: few steps decide most of the return."""
SUPPORT = 0.05
"""Least probability of a supported choice under the behaviour, as a share of the most likely one."""
DOUBT = 0.5
"""Standard deviations of the ensemble that are subtracted from an advantage."""
PRIOR = 0.7
"""Points per nat of log-probability of the operation under the behaviour."""
MOST_CANDIDATES = 48
"""Largest number of candidates of one state; those with the least values beyond it are left out."""
_WAIT, _GERMINATE = OP_INDEX[Op.WAIT], OP_INDEX[Op.GERMINATE]
_FACTORS = (Head.ALPHA_TARGET, Head.ALPHA_SPEED, Head.ALPHA_CURVE, Head.TEMPO)


class Candidates(NamedTuple):
    """Supported actions of N states: WAIT, then one per operation, slot and blueprint, with its best factors."""

    actions: Tensor
    """int64 [N, C, A]; WAIT again where there is no candidate."""
    advantages: Tensor
    """float32 [N, C]: points over WAIT, a lower bound; NaN where there is no candidate."""


def q_config(config: TrainConfig) -> TrainConfig:
    """Return the settings of Q-functions: their learning rates and weight decay, and no penalty in the first epoch.

    A policy's penalty would be read as hundreds of points of return.
    """
    network = config.network.model_copy(update={"first_epoch_penalty": 0.0})
    return config.model_copy(
        update={"network": network, "policy_lr": RATE, "value_lr": RATE, "weight_decay": DECAY},
    )


def q_values(output: NetworkOutput, slot_ptr: Tensor, actions: Tensor) -> Tensor:
    """Return [N]: points of return to go of actions int [N, A]."""
    return output.value + POINTS * heads.logits_of(output, slot_ptr, actions).sum(1)


def q_loss(network: PolicyNetwork, states: GraphBatch, actions: Tensor, returns: Tensor) -> Loss:
    """Return the Huber distance of Q to the return to go, in units of ``ERROR_CUT``."""
    q = q_values(network(states), states.slot_ptr, actions)
    loss = functional.huber_loss(q, returns, delta=ERROR_CUT) / ERROR_CUT
    metrics = {"q_loss": loss, "q_error": (q - returns).abs().mean(), "step_count": loss.new_full((), len(returns))}
    return Loss(loss, {name: value.detach() for name, value in metrics.items()})


def fit(learner: Learner, store: GraphDataset, rows: NDArray[np.int64], updates: int, seed: int) -> Iterator[Record]:
    """Fit the learner's network to the returns of the steps ``rows``, and yield one record per update."""
    schedule, draw = LrSchedule(min(20, updates // 4), updates, 1.0, 0.02), generator(seed, "q")
    germinates = store.steps.actions[torch.from_numpy(rows), HEAD_INDEX[Head.OP]].numpy() == _GERMINATE
    weights = np.where(germinates, GERMINATION_WEIGHT, 1.0)

    def loss_of(drawn: NDArray[np.int64], part: slice) -> Loss:
        ids = drawn[part]
        states, _ = store.states(ids)
        steps = store.steps_at(ids)
        return q_loss(learner.network, states, steps.actions, steps.returns)

    for position in range(updates):
        ids = draw.choice(rows, min(BATCH, len(rows)), p=weights / weights.sum())
        metrics = learner.update(len(ids), partial(loss_of, ids), schedule, position)
        yield Record(learner.updates, "q_fit", metrics, position * BATCH // len(rows))


@torch.no_grad()
def predictions(network: PolicyNetwork, store: GraphDataset, rows: NDArray[np.int64]) -> Tensor:
    """Return [rows]: Q of the logged actions."""
    out = [torch.zeros(0)]
    for ids in _parts(rows):
        states, _ = store.states(ids)
        out.append(q_values(network(states), states.slot_ptr, store.steps_at(ids).actions).cpu())
    return torch.cat(out)


@torch.no_grad()
def supported_ops(behaviour: PolicyNetwork, store: GraphDataset, rows: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Return bool [rows, ops]: operations that the behaviour, a cloned network, takes often enough."""
    out = [np.zeros((0, len(OPS)), dtype=bool)]
    for ids in _parts(rows):
        states, masks = store.states(ids)
        out.append(_supported(behaviour.act(states).op, masks.op, 1).cpu().numpy())
    return np.concatenate(out)


def _parts(rows: NDArray[np.int64]) -> list[NDArray[np.int64]]:
    return np.array_split(rows, -(-len(rows) // BATCH)) if len(rows) else []


@torch.no_grad()
def candidates(
    networks: Sequence[PolicyNetwork], behaviour: PolicyNetwork, states: GraphBatch, masks: MaskTensors
) -> Candidates:
    """Return the supported actions of N states and lower bounds of their advantages over WAIT.

    The advantage is the ensemble's mean minus ``DOUBT`` standard deviations, so that an action of which the log says
    little must look better than others (Kumar et al. 2020, on values that are lower bounds). Actions that the behaviour
    hardly takes are left out, because nothing bounds their error (Fujimoto et al. 2019, section 3). ``PRIOR`` draws the
    choice of the operation towards the behaviour: where the timing hardly matters, its rates stay.
    """
    masks = MaskTensors(*(mask.cpu() for mask in masks))
    slots = _SlotTable(states.slot_ptr.cpu(), masks)
    own = slots.read(behaviour.act(states))
    outputs = [slots.read(network.act(states)) for network in networks]
    best = {
        head: torch.stack([output.factors[head] for output in outputs])
        .mean(0)
        .masked_fill(~_supported_factor(own, head), IMPOSSIBLE)
        .argmax(2)
        for head in _FACTORS
    }
    each = torch.stack([_advantages(output, best) for output in outputs])
    prior = own.op.masked_fill(~masks.op, IMPOSSIBLE).log_softmax(1)
    actions, ops = _actions(best, own.blueprint.shape)
    total = POINTS * (each.mean(0) - DOUBT * each.std(0, correction=0))
    total = total + PRIOR * (prior - prior[:, [_WAIT]])[:, ops]
    return _strongest(actions, total.masked_fill(~_support(own, slots, masks), torch.nan))


class _SlotOutputs(NamedTuple):
    """Logits of a network, by graph and slot."""

    op: Tensor
    """[N, ops]"""
    slot: Tensor
    """[N, M, ops]"""
    blueprint: Tensor
    """[N, M, K]"""
    factors: dict[Head, Tensor]
    """[N, M, choices] each."""


class _SlotTable:
    """Arranges ragged slots as [N, M], in host memory."""

    def __init__(self, slot_ptr: Tensor, masks: MaskTensors) -> None:
        lengths = slot_ptr.diff()
        place = torch.arange(int(lengths.max()))
        self.exists = place < lengths.unsqueeze(1)
        self._rows = (slot_ptr[:-1].unsqueeze(1) + place).clamp(max=len(masks.slot) - 1)
        self.legal = masks.slot[self._rows] & self.exists.unsqueeze(2) & masks.op.unsqueeze(1)
        """bool [N, M, ops]"""

    def read(self, output: NetworkOutput) -> _SlotOutputs:
        output = NetworkOutput(*(logits.cpu() for logits in output))
        factors = (output.target, output.speed, output.curve, output.tempo)
        return _SlotOutputs(
            output.op,
            output.slot[self._rows],
            output.blueprint[self._rows],
            {head: logits[self._rows] for head, logits in zip(_FACTORS, factors, strict=True)},
        )


def _supported(logits: Tensor, legal: Tensor, dim: int) -> Tensor:
    """Return where a legal choice has at least ``SUPPORT`` times the probability of the most likely one."""
    most = logits.masked_fill(~legal, IMPOSSIBLE).amax(dim, keepdim=True)
    return legal & (logits >= most + math.log(SUPPORT))


def _supported_factor(own: _SlotOutputs, head: Head) -> Tensor:
    logits = own.factors[head]
    return _supported(logits, torch.ones_like(logits, dtype=torch.bool), 2)


def _advantages(output: _SlotOutputs, best: dict[Head, Tensor]) -> Tensor:
    """Return [N, C]: advantages over WAIT in logits, with the ``best`` factors; WAIT, germinations, then others."""
    slot = (output.op - output.op[:, [_WAIT]]).unsqueeze(1) + output.slot
    factor = {head: output.factors[head].gather(2, best[head].unsqueeze(2)).squeeze(2) for head in _FACTORS}
    total = [
        slot[:, :, index] + sum((factor[head] for head in _FACTORS if head in RELEVANT_HEADS[op]), torch.zeros(()))
        for index, op in enumerate(OPS)
    ]
    germinate = (total[_GERMINATE].unsqueeze(2) + output.blueprint).flatten(1)
    return torch.cat([torch.zeros(len(slot), 1), germinate, *(total[index] for index in _others())], dim=1)


def _support(own: _SlotOutputs, slots: _SlotTable, masks: MaskTensors) -> Tensor:
    """Return bool [N, C]: candidates that are legal and supported; WAIT always is one."""
    op = _supported(own.op, masks.op, 1)
    slot = _supported(own.slot, slots.legal, 1) & op.unsqueeze(1)
    blueprint = _supported(own.blueprint, masks.blueprint.unsqueeze(1).expand_as(own.blueprint), 2)
    germinate = (slot[:, :, [_GERMINATE]] & blueprint).flatten(1)
    return torch.cat([torch.ones_like(op[:, :1]), germinate, *(slot[:, :, index] for index in _others())], dim=1)


def _others() -> list[int]:
    return [index for index in range(len(OPS)) if index not in (_WAIT, _GERMINATE)]


def _actions(best: dict[Head, Tensor], shape: torch.Size) -> tuple[Tensor, Tensor]:
    """Return the actions [N, C, A] in the order of ``_advantages``, and their operations [C]; ``shape``: [N, M, K]."""
    count, most, blueprints = shape
    place = torch.arange(most)
    ops = [torch.tensor([_WAIT]), torch.full((most * blueprints,), _GERMINATE)]
    slots = [torch.tensor([-1]), place.repeat_interleave(blueprints)]
    for index in _others():
        ops.append(torch.full((most,), index))
        slots.append(place)
    op, slot = torch.cat(ops), torch.cat(slots)
    actions = torch.full((count, len(op), len(HEADS)), -1)
    actions[:, :, HEAD_INDEX[Head.OP]], actions[:, :, HEAD_INDEX[Head.SLOT]] = op, slot
    actions[:, 1 : 1 + most * blueprints, HEAD_INDEX[Head.BLUEPRINT]] = torch.arange(blueprints).repeat(most)
    for head in _FACTORS:
        uses = torch.tensor([head in RELEVANT_HEADS[OPS[index]] for index in op.tolist()])
        actions[:, uses, HEAD_INDEX[head]] = best[head][:, slot[uses]]
    return actions, op


def _strongest(actions: Tensor, advantages: Tensor) -> Candidates:
    """Keep WAIT and the best other candidates, and fill the places without one with WAIT."""
    most = min(MOST_CANDIDATES, advantages.shape[1])
    key = advantages.nan_to_num(nan=-torch.inf)
    key[:, 0] = torch.inf
    chosen = key.topk(most, dim=1).indices
    kept = advantages.gather(1, chosen)
    taken = actions.gather(1, chosen.unsqueeze(2).expand(-1, -1, len(HEADS)))
    return Candidates(torch.where(kept.isnan().unsqueeze(2), taken[:, :1], taken), kept)
