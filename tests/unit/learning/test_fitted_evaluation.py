"""Fitted Q evaluation in the small world of the learner, whose values are known."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from support.builders.learning import KINDS, bandit_episodes, untrained_at_first
from support.builders.snapshots import write_snapshot

from simic.contracts.actions import HEADS, Op
from simic.contracts.batches import OP_INDEX
from simic.contracts.settings.network import NetworkConfig
from simic.contracts.settings.training import TrainConfig
from simic.controllers.logged_states import TargetActions
from simic.hosts.plugins import blueprint_names
from simic.learning.fitted_evaluation import fit_values
from simic.replay.dataset import GraphDataset

CONFIG = TrainConfig(network=NetworkConfig(hidden=8, layers=1), q_updates=84)
BONUS = {"linear": 5.0, "curved": 0.0, "healthy": -5.0}
"""Reward of the second step, whatever was chosen in the first."""


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> GraphDataset:
    """The return of the choice comes at once, so that the states of the world are Markov; then the bonus."""
    root = tmp_path_factory.mktemp("log")
    write_snapshot(root / "s", bandit_episodes(range(120), noise=0.01), split="train", gamma=1.0)
    made = GraphDataset.load(root / "s", blueprints=blueprint_names())
    first, rewards = made.sequences.starts, torch.zeros(made.step_count)
    rewards[first] = made.steps.returns[first]
    rewards[first + 1] = torch.tensor([BONUS[KINDS[key % 3]] for key in made.sequences.host_keys.tolist()])
    total = rewards.view(-1, 3)
    steps = made.steps._replace(rewards=rewards, returns=total.flip(1).cumsum(1).flip(1).reshape(-1))
    return GraphDataset(made.sequences, steps, made.masks, made.table, made.blueprints)


def waiting(store: GraphDataset) -> TargetActions:
    wait = np.full((store.step_count, 1, len(HEADS)), -1)
    wait[:, :, 0] = OP_INDEX[Op.WAIT]
    return TargetActions(np.zeros(store.step_count), wait, np.ones((store.step_count, 1)))


def test_values_are_those_of_the_target_and_not_of_the_behaviour(store: GraphDataset) -> None:
    """A policy that waits gets the bonus of the next step alone, whatever the logged episode earned."""
    found = fit_values(store, waiting(store), CONFIG, 0)
    first = store.sequences.starts
    kinds = np.array([KINDS[key % 3] for key in store.sequences.host_keys.tolist()])
    for kind, bonus in BONUS.items():
        behaviour = store.steps.returns.numpy()[first][kinds == kind].mean()
        own = found.v[first][kinds == kind].mean()
        assert abs(own - bonus) < 1.5, kind
        assert abs(behaviour - bonus) > 1.5 or kind == "curved"
    assert np.corrcoef(found.q[first], store.steps.returns.numpy()[first])[0, 1] > 0.8
    assert np.abs(found.v[first + 2]).mean() < 1.0, "nothing follows the last step"


def test_an_action_that_no_log_of_the_first_epoch_has_is_worth_about_the_mean_return(tmp_path: Path) -> None:
    """The restraint of a policy before the first epoch is no estimate of a return."""
    write_snapshot(tmp_path / "s", untrained_at_first(bandit_episodes(range(24))), split="train", gamma=1.0)
    store = GraphDataset.load(tmp_path / "s", blueprints=blueprint_names())
    actions = store.steps.actions.numpy()
    (germinates,) = np.flatnonzero(actions[:, 0] == OP_INDEX[Op.GERMINATE])[:1]
    target = TargetActions(
        np.zeros(store.step_count),
        np.broadcast_to(actions[germinates], (store.step_count, 1, len(HEADS))).astype(np.int64),
        np.ones((store.step_count, 1)),
    )
    found = fit_values(store, target, CONFIG.model_copy(update={"q_updates": 1}), 0)
    assert found is not None
    assert np.abs(found.v - float(store.steps.returns.mean())).max() < 15.0


def test_each_host_is_told_by_the_network_that_did_not_see_it(tmp_path: Path) -> None:
    write_snapshot(tmp_path / "s", bandit_episodes([3]), split="train", gamma=1.0)
    store = GraphDataset.load(tmp_path / "s", blueprints=blueprint_names())
    assert fit_values(store, waiting(store), CONFIG, 0) is None, "one host alone has no other half"
