"""Behaviour cloning of a log: whom it imitates, and what it does not look at."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.builders.learning import STEPS, bandit_episodes
from support.builders.reports import BLUEPRINTS, episode
from support.builders.snapshots import write_snapshot

from simic.contracts.actions import Op
from simic.contracts.batches import OP_INDEX
from simic.contracts.errors import ConfigError, TrainingError
from simic.contracts.settings.network import NetworkConfig
from simic.contracts.settings.training import TrainConfig
from simic.hosts.plugins import blueprint_names
from simic.learning.losses import cloning_loss
from simic.learning.objectives.cloning import imitation_loss
from simic.learning.training_run import TrainingRun
from simic.replay.batch import SequenceBatch
from simic.replay.dataset import GraphDataset

CONFIG = TrainConfig(
    objective="cloning",
    network=NetworkConfig(hidden=16, layers=1),
    batch_sequences=16,
    vtrace_passes=8,
    min_commit_rate=0.0,
)
EPISODES = 240


def store_of(root: Path, keys: range) -> GraphDataset:
    write_snapshot(root, bandit_episodes(keys), split="train")
    return GraphDataset.load(root, blueprints=blueprint_names())


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> GraphDataset:
    return store_of(tmp_path_factory.mktemp("log") / "s", range(EPISODES))


@pytest.fixture(scope="module")
def cloned(store: GraphDataset) -> TrainingRun:
    training = TrainingRun.begin(store, CONFIG, None, 0)
    assert {record.phase for record in training.run()} == {"imitation"}, "no other phase comes first"
    return training


def test_it_reaches_the_entropy_of_a_demonstrator_on_hosts_it_never_saw(cloned: TrainingRun, tmp_path: Path) -> None:
    """The demonstrator draws one of three choices in the first of three steps, so its entropy is ln 3 per episode."""
    fresh = store_of(tmp_path / "s", range(1000, 1000 + EPISODES))
    batch = fresh.batch(np.arange(len(fresh)))
    exploration, entropy = CONFIG.network.exploration, math.log(3) / STEPS
    networks = (cloned.learner.network, TrainingRun.begin(fresh, CONFIG, None, 0).learner.network)
    found, untrained = (float(cloning_loss(network, batch, exploration).total.detach()) for network in networks)
    assert found == pytest.approx(entropy, abs=0.02)
    assert untrained > entropy + 0.2


def test_passes_are_counted_and_bounded(cloned: TrainingRun) -> None:
    assert (cloned.episodes_seen, cloned.mean_passes) == (EPISODES, float(CONFIG.vtrace_passes))
    assert cloned.planned_updates == cloned.learner.updates == CONFIG.vtrace_passes * EPISODES // CONFIG.batch_sequences
    assert 0.9 < cloned.final_metrics["mean_ratio"] <= 1.0, "the gate reads it"


def test_the_policy_learns_from_actions_and_from_no_return(store: GraphDataset) -> None:
    """Other rewards give the policy the same gradient, and the value another one."""
    network = TrainingRun.begin(store, CONFIG, None, 0).learner.network
    batch = store.batch(np.arange(16))
    other = SequenceBatch(**{**batch.__dict__, "rewards": batch.rewards + 7.0 * batch.valid})
    totals = [imitation_loss(network, each, CONFIG).total for each in (batch, other)]
    policies = [torch.autograd.grad(total, network.policy_parameters(), retain_graph=True) for total in totals]
    values = [torch.autograd.grad(total, network.value_parameters()) for total in totals]
    assert all(torch.equal(one, two) for one, two in zip(*policies, strict=True))
    assert any(not torch.equal(one, two) for one, two in zip(*values, strict=True))


def test_the_value_learns_the_returns_of_the_log(store: GraphDataset) -> None:
    network, batch = TrainingRun.begin(store, CONFIG, None, 0).learner.network, store.batch(np.arange(16))
    found = imitation_loss(network, batch, CONFIG.model_copy(update={"lambda_": 1.0})).errors
    assert found is not None
    with torch.no_grad():
        expected = batch.returns[batch.time, batch.sequence] - network.value(batch.steps)
    torch.testing.assert_close(found[batch.time, batch.sequence], expected, atol=1e-3, rtol=1e-4)


def test_importance_weights_of_prioritised_draws_weigh_sequences(store: GraphDataset) -> None:
    """Two copies of a batch of one sequence, of which the second weighs nothing, give half the loss of the first."""
    network = TrainingRun.begin(store, CONFIG, None, 0).learner.network
    alone = imitation_loss(network, store.batch(np.array([3])), CONFIG).total.detach()
    pair = store.batch(np.array([3, 3]))
    weighted = SequenceBatch(**{**pair.__dict__, "weights": torch.tensor([1.0, 0.0])})
    assert float(imitation_loss(network, weighted, CONFIG).total.detach()) == pytest.approx(float(alone) / 2, rel=1e-5)


def test_a_demonstrator_that_never_grows_is_refused(tmp_path: Path) -> None:
    write_snapshot(tmp_path / "s", [report for key in range(20) for report in episode(key)], split="train")
    store = GraphDataset.load(tmp_path / "s", blueprints=BLUEPRINTS)
    training = TrainingRun.begin(store, CONFIG.model_copy(update={"min_commit_rate": 1.0}), None, 0)
    with pytest.raises(TrainingError, match=r"train\.min_commit_rate"):
        list(training.run())


def test_a_demonstrator_that_begins_seeds_before_the_first_epoch_is_imitated(tmp_path: Path) -> None:
    """The penalty on such germinations is for policies that learn from rewards; here it would hide the demonstrator."""
    script = {0: Op.GERMINATE, 3: Op.ADVANCE, 8: Op.FOSSILIZE}
    reports = [report for key in range(48) for report in episode(key, controller="blind", script=script)]
    write_snapshot(tmp_path / "s", reports, split="train", change=_surely)
    store = GraphDataset.load(tmp_path / "s", blueprints=BLUEPRINTS)
    config = CONFIG.model_copy(update={"vtrace_passes": 60, "max_passes": 60, "min_commit_rate": 0.02})
    training = TrainingRun.begin(store, config, None, 0)
    assert float(training.learner.network.first_epoch_penalty) == 50.0
    for _ in training.run():
        pass
    states, masks = store.states(store.sequences.starts)
    shares = training.policy().act(states).op.masked_fill(~masks.op, -torch.inf).softmax(1)
    assert float(shares[:, OP_INDEX[Op.GERMINATE]].min().detach()) > 0.9


def _surely(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Reports of a controller that draws nothing."""
    for row in rows:
        chances = row["log_prob_behaviour"]
        chances |= {head: 0.0 for head, value in chances.items() if value is not None}
    return rows


def test_a_falling_weight_of_the_entropy_is_refused(store: GraphDataset) -> None:
    """The loss has no entropy, so the setting would do nothing."""
    config = CONFIG.model_copy(update={"entropy_bonus": 0.1, "entropy_bonus_last": 0.0})
    with pytest.raises(ConfigError, match=r"train\.entropy_bonus_last has no effect on train\.objective cloning"):
        list(TrainingRun.begin(store, config, None, 0).run())
