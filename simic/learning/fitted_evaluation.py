"""Fitted Q evaluation: action values of a given policy from a log of another one, by bootstrapped regression.

A network of the policy's architecture is read as a Q-function (``q_functions``). Its target at a step is the reward
plus the mean of Q over the given policy's actions at the next step (Le, Voloshin and Yue 2019, Batch policy learning
under constraints, algorithm 3). It begins with the behaviour's own returns as targets. Hosts are split into two halves,
and the values of either half come from the network that learned from the other.

Shapes: N steps, C candidate actions of a step, A heads.
"""

from __future__ import annotations

import copy
from functools import partial
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from simic.contracts.settings.training import TrainConfig
from simic.controllers.logged_states import TargetActions
from simic.controllers.network import PolicyNetwork
from simic.learning.learner import Learner
from simic.learning.losses import Loss
from simic.learning.phases import fresh_network
from simic.learning.q_functions import BATCH, q_config, q_loss, q_values
from simic.learning.rates import LrSchedule
from simic.replay.dataset import GraphDataset
from simic.runtime.seeds import derive, generator

__all__ = ["FittedValues", "fit_values"]

HALVES = 2
ROUNDS = 6
"""Number of times that the targets are renewed; the first round learns returns of the behaviour."""


class FittedValues(NamedTuple):
    """Points of undiscounted return to go under the target policy, float64 [N] each."""

    q: NDArray[np.float64]
    """Of the logged actions."""
    v: NDArray[np.float64]
    """Of the states: the mean of Q over the target's actions."""


def fit_values(store: GraphDataset, target: TargetActions, config: TrainConfig, seed: int) -> FittedValues | None:
    """Return values of all steps of ``store``, whose discounts are 1, or 0 where an episode terminated.

    Hosts fall into halves by a hash of set and key; None if one half has no host, because nothing could be left out.
    """
    keys = zip(store.sequences.sets, store.sequences.host_keys.tolist(), strict=True)
    halves = np.array([derive(key, "half", name) % HALVES for name, key in keys])
    if len(np.unique(halves)) < HALVES:
        return None
    half_of = np.repeat(halves, store.sequences.lengths)
    q, v = np.zeros(len(half_of)), np.zeros(len(half_of))
    for half in range(HALVES):
        learned, told = np.flatnonzero(half_of != half), np.flatnonzero(half_of == half)
        network = _fit(store, target, learned, config, derive(seed, "values", half))
        for rows in np.array_split(told, -(-len(told) // BATCH)):
            own, mean = _values(network, store, target, rows)
            q[rows], v[rows] = own.double().numpy(), mean.double().numpy()
    return FittedValues(q, v)


def _fit(
    store: GraphDataset, target: TargetActions, rows: NDArray[np.int64], config: TrainConfig, seed: int
) -> PolicyNetwork:
    settings = q_config(config)
    learner, draw = Learner(fresh_network(store, settings, seed), settings), generator(seed, "draws")
    per_round, schedule = -(-config.q_updates // ROUNDS), LrSchedule(20, config.q_updates, 1.0, 0.02)
    before = learner.network
    for update in range(per_round * ROUNDS):
        if update % per_round == 0:
            before = copy.deepcopy(learner.network)
        ids = draw.choice(rows, min(BATCH, len(rows)))
        loss_of = partial(_loss, learner.network, store, target, before if update >= per_round else None, ids)
        learner.update(len(ids), loss_of, schedule, update)
    return learner.network


def _loss(
    network: PolicyNetwork,
    store: GraphDataset,
    target: TargetActions,
    before: PolicyNetwork | None,
    drawn: NDArray[np.int64],
    part: slice,
) -> Loss:
    """Return the loss of some drawn steps, whose targets bootstrap from ``before``; None learns returns."""
    ids = drawn[part]
    states, _ = store.states(ids)
    steps = store.steps_at(ids)
    targets = steps.returns if before is None else steps.rewards + _following(before, store, target, ids)
    return q_loss(network, states, steps.actions, targets)


def _following(network: PolicyNetwork, store: GraphDataset, target: TargetActions, ids: NDArray[np.int64]) -> Tensor:
    """Return the values of the next states; 0 after the end of an episode."""
    goes_on = store.steps.discounts[torch.from_numpy(ids)] > 0.0
    after = torch.zeros(len(ids))
    if goes_on.any():
        after[goes_on] = _values(network, store, target, ids[goes_on.numpy()] + 1)[1]
    return after


@torch.no_grad()
def _values(
    network: PolicyNetwork, store: GraphDataset, target: TargetActions, rows: NDArray[np.int64]
) -> tuple[Tensor, Tensor]:
    """Return Q of the logged actions, and the mean of Q over the target's actions, at ``rows``."""
    states, _ = store.states(rows)
    output = network(states)
    own = q_values(output, states.slot_ptr, store.steps.actions[torch.from_numpy(rows)])
    shares, candidates = torch.from_numpy(target.shares[rows]).float(), torch.from_numpy(target.candidates[rows])
    each = [q_values(output, states.slot_ptr, candidates[:, index]) for index in range(candidates.shape[1])]
    mean = (torch.stack(each, dim=1) * shares).sum(1)
    return own, mean
