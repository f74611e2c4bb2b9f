"""Elastic weight consolidation: a training keeps the weights on which the decisions of its start policy depend.

The loss of every update gains ``(lambda / 2) sum_i F_i (theta_i - theta*_i)^2`` (Kirkpatrick et al. 2017,
arXiv:1612.00796, equation 3). theta* are the weights of the start policy, and F is the diagonal of its Fisher
information: the mean over states of ``(d log pi(a | s) / d theta)^2``, with actions drawn from the policy itself. A
policy's F also has a share of the one before it (Schwarz et al. 2018, arXiv:1805.06370, section 3), so one penalty
stands for all trainings so far.

All weights of the policy count, those of the value encoder that its heads read included; the value head decides
nothing and is free.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from simic.contracts.actions import HEADS
from simic.contracts.errors import ContractError, TrainingError
from simic.controllers.graph import NODE_TYPES, GraphBatch
from simic.controllers.heads import ActionDistribution, MaskTensors
from simic.controllers.network import PolicyNetwork
from simic.learning.continual.lora import effective_parameters
from simic.learning.continual.per_sample import squared_gradient_sums
from simic.replay.dataset import GraphDataset
from simic.runtime.seeds import generator

__all__ = ["Anchor", "ElasticPenalty", "Fisher", "consolidate", "deciding_parameters", "fisher_diagonal"]

_BATCH = 256
"""States of one backward pass."""
_FREE = "value_head."
"""Beginning of the names of parameters that decide nothing."""
_NODE = re.compile(rf"({'|'.join(NODE_TYPES)})(?:>\.lin_l)?$")
"""End of the name of an encoder's layer: the kind of nodes that are its rows."""
_HEADS = {"op_head": "context", "slot_head": "slot"}
"""Kind of nodes of the heads' layers."""


class Fisher(NamedTuple):
    """A diagonal of the Fisher information."""

    diagonal: dict[str, Tensor]
    """By parameter, of its shape; at least 0."""
    samples: int
    """Number of states over which it is the mean."""


class Anchor(NamedTuple):
    """The weights that a training is not to leave, and how much each of them matters; float32, by parameter name.

    Both hold the parameters that decide (``deciding_parameters``), each in the shape of its parameter.
    """

    weights: dict[str, Tensor]
    """theta*: those of the policy that the first training of the run began with, in its later rounds too."""
    fisher: dict[str, Tensor]
    """F: the diagonal of its Fisher information, with that of policies before it (``consolidate``); at least 0."""


class ElasticPenalty:
    """The penalty of a network for leaving an anchor; 0 with gradient 0 at the anchor."""

    def __init__(self, weight: float, anchor: Anchor, device: torch.device | None = None) -> None:
        """Prepare; ``weight`` is lambda. The anchor is copied to the network's ``device``, and has no gradient."""
        self._names = sorted(anchor.fisher)
        self._weights, self._fisher = (_flat(part, self._names).detach().to(device) for part in anchor)
        self._half = 0.5 * weight

    def __call__(self, network: nn.Module) -> Tensor:
        """Return [] for the weights that the network acts with, adapters included."""
        moved = _flat(effective_parameters(network), self._names) - self._weights
        return self._half * (self._fisher * moved.square()).sum()


def deciding_parameters(network: nn.Module) -> dict[str, Tensor]:
    """Return copies of the weights that decide, by parameter; the network has no adapters."""
    return {name: value.detach().clone() for name, value in network.named_parameters() if not name.startswith(_FREE)}


def consolidate(own: Mapping[str, Tensor], earlier: Mapping[str, Tensor], decay: float) -> dict[str, Tensor]:
    """Return ``own + decay * earlier``, the importance of a weight for the last training and those before it."""
    return {name: value + decay * earlier[name] for name, value in own.items()}


def fisher_diagonal(network: PolicyNetwork, store: GraphDataset, samples: int, seed: int) -> Fisher:
    """Return the mean squared gradient of log pi over at most ``samples`` states of the data, one drawn action each.

    States at which nothing but WAIT is legal are left out, because no weight decides there. pi is without exploration.
    The network is in evaluation mode meanwhile, and stays on its device, to which the states are sent.

    Raises:
        TrainingError: if the data has no state with a choice.
    """
    rows = _chosen_rows(store, samples, seed)
    draw = generator(seed, "actions")
    sums: dict[str, Tensor] = {}
    device = next(network.parameters()).device
    was_training = network.training
    network.eval()
    try:
        for ids in np.array_split(rows, -(-len(rows) // _BATCH)):
            states, masks = store.states(ids)
            states, masks = states.to(device), MaskTensors(*(mask.to(device) for mask in masks))
            for name, value in _squares(network, states, masks, draw).items():
                sums[name] = sums[name] + value.double() if name in sums else value.double()
    finally:
        network.train(was_training)
    return Fisher({name: (value / len(rows)).float() for name, value in sums.items()}, len(rows))


def _chosen_rows(store: GraphDataset, samples: int, seed: int) -> NDArray[np.int64]:
    """Return the rows of the states, sorted: a uniform draw without replacement, or all if there are no more."""
    rows = np.flatnonzero(store.masks.op[:, 1:].any(1).cpu().numpy())
    if not len(rows):
        raise TrainingError(
            "no state of the training data leaves a choice besides WAIT, so the Fisher information of a policy cannot "
            "be measured: collect more episodes, or set train.ewc.weight to 0"
        )
    return np.sort(generator(seed, "states").permutation(rows)[:samples])


def _squares(
    network: PolicyNetwork, states: GraphBatch, masks: MaskTensors, draw: np.random.Generator
) -> dict[str, Tensor]:
    """Return the sum over the states of the squared gradient of log pi at an action drawn from pi."""
    pointers = {
        "context": torch.arange(states.graphs + 1, device=states.slot_ptr.device),
        "slot": states.slot_ptr,
        "layer": states.layer_ptr,
    }

    def log_probs() -> Tensor:
        output = network.act_of_all_weights(states)
        uniforms = draw.random((states.graphs, len(HEADS)))
        distribution = ActionDistribution(output, states.slot_ptr, masks, exploration=0.0)
        actions = torch.from_numpy(distribution.sample(uniforms).actions)
        return distribution.log_prob(actions.to(states.slot_ptr.device)).joint

    squares = squared_gradient_sums(network, log_probs, lambda layer: pointers[_node_of(layer)])
    expected = {name for name, _ in network.named_parameters() if not name.startswith(_FREE)}
    if set(squares) != expected:
        raise ContractError(f"squared gradients: expected those of {len(expected)} parameters, found other names "
                            f"{sorted(expected ^ set(squares))[:5]}")  # fmt: skip
    return squares


def _node_of(layer: str) -> str:
    """Return the kind of nodes that are the rows of a layer of the policy network."""
    if (head := _HEADS.get(layer.partition(".")[0])) is not None:
        return head
    match = _NODE.search(layer)
    if match is None:
        raise ContractError(f"layer {layer} of the policy network has rows of an unknown kind; expected {NODE_TYPES}")
    return match[1]


def _flat(tensors: Mapping[str, Tensor], names: list[str]) -> Tensor:
    return torch.cat([tensors[name].reshape(-1) for name in names])
