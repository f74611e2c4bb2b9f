"""Advantage-weighted regression: its weights, and what it learns from a log."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from support.builders.learning import CHOICES, KINDS, RETURNS, bandit_episodes
from support.builders.snapshots import write_snapshot

from simic.contracts.settings.network import NetworkConfig
from simic.contracts.settings.training import TrainConfig
from simic.controllers import heads
from simic.controllers.network import PolicyNetwork
from simic.hosts.plugins import blueprint_names
from simic.learning.objectives.awr import awr_loss
from simic.learning.training_run import TrainingRun
from simic.replay.batch import SequenceBatch
from simic.replay.dataset import GraphDataset

CONFIG = TrainConfig(
    objective="awr",
    network=NetworkConfig(hidden=16, layers=1),
    batch_sequences=16,
    cloning_passes=2,
    value_passes=10,
    vtrace_passes=8,
    min_commit_rate=0.0,
)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> GraphDataset:
    path = tmp_path_factory.mktemp("log") / "s"
    write_snapshot(path, bandit_episodes(range(144), noise=0.01), split="train")
    return GraphDataset.load(path, blueprints=blueprint_names())


@pytest.fixture
def network(store: GraphDataset) -> PolicyNetwork:
    """Its value differs between states."""
    network = TrainingRun.begin(store, CONFIG, None, 0).learner.network
    network.set_value_scale(5.0, 8.0)
    with torch.no_grad():
        network.value_head[2].weight.mul_(100.0)
    return network


def test_the_weights_by_hand(store: GraphDataset, network: PolicyNetwork) -> None:
    """With lambda 1 the advantage is the return to go less the value; 4 points weigh e times as much, at most 1.5."""
    batch = store.batch(np.arange(24))
    config = CONFIG.model_copy(update={"awr_temperature": 0.5, "awr_max_weight": 1.5})
    found = awr_loss(network, batch, config, advantage_scale=8.0)
    with torch.no_grad():
        values = network.value(batch.steps)
    exponents = (batch.returns[batch.time, batch.sequence] - values) / 4.0
    assert float(values.std()) > 0.1
    weights = exponents.exp().clamp(max=1.5)
    assert 0.0 < float(found.metrics["weight_capped_share"]) < 1.0
    assert float(found.metrics["weight_mean"]) == pytest.approx(float(weights.mean()), rel=1e-4)
    with torch.no_grad():
        output = network.act(batch.steps)
    log_prob = heads.ActionDistribution(output, batch.steps.slot_ptr, batch.masks, 0.01).log_prob(batch.actions).heads
    relevant, expected = heads.relevant_heads(batch.actions), 0.0
    for head in range(log_prob.shape[1]):
        rows = relevant[:, head]
        expected -= float((weights[rows] * log_prob[rows, head]).mean()) if rows.any() else 0.0
    assert float(found.metrics["policy_loss"]) == pytest.approx(expected, rel=1e-4)
    assert found.errors is not None, "of the values from the returns"
    torch.testing.assert_close(found.errors[batch.time, batch.sequence] / 4.0, exponents, atol=1e-3, rtol=1e-4)


@pytest.mark.parametrize("largest", [7.0, 8.0, 13.0, 26.0])
def test_the_share_of_bounded_weights_does_not_depend_on_rounding(
    store: GraphDataset, network: PolicyNetwork, largest: float
) -> None:
    """The exponential of the rounded logarithm of 7 is less than 7."""
    config = CONFIG.model_copy(update={"awr_temperature": 0.01, "awr_max_weight": largest})
    share = float(awr_loss(network, store.batch(np.arange(24)), config, 1.0).metrics["weight_capped_share"])
    assert share == pytest.approx(1 / 8), "as with a bound of 8, whose logarithm does not round"


def test_no_gradient_of_the_policy_loss_reaches_the_value(store: GraphDataset, network: PolicyNetwork) -> None:
    """Weights are constants: only the value loss moves the value."""
    batch = store.batch(np.arange(24))
    far = awr_loss(network, batch, CONFIG, 1.0).metrics
    values = [
        awr_loss(network, batch, CONFIG.model_copy(update={"awr_temperature": heat}), 1.0).total for heat in (0.5, 50.0)
    ]
    gradients = [torch.autograd.grad(total, network.value_parameters()) for total in values]
    for one, other in zip(*gradients, strict=True):
        assert torch.equal(one, other)
    assert torch.isfinite(far["policy_loss"])


def test_a_huge_advantage_is_finite(store: GraphDataset, network: PolicyNetwork) -> None:
    batch = store.batch(np.arange(8))
    huge = SequenceBatch(**{**batch.__dict__, "rewards": batch.rewards + 1e6 * batch.valid})
    found = awr_loss(network, huge, CONFIG, advantage_scale=0.1)
    assert torch.isfinite(found.total)
    assert float(found.metrics["weight_mean"]) == pytest.approx(CONFIG.awr_max_weight, rel=1e-4)


def test_the_right_choice_is_learned_for_every_kind_of_host(store: GraphDataset, tmp_path: Path) -> None:
    """On hosts that the log does not have; the oracle is the table of the world."""
    training = TrainingRun.begin(store, CONFIG, None, 0)
    phases = [record.phase for record in training.run()]
    assert phases.count("awr") == CONFIG.vtrace_passes * 144 // CONFIG.batch_sequences
    write_snapshot(tmp_path / "s", bandit_episodes(range(300, 330), noise=0.0), split="train")
    fresh = GraphDataset.load(tmp_path / "s", blueprints=blueprint_names())
    states, masks = fresh.states(fresh.sequences.starts)
    output = training.policy().act(states)
    ops = output.op.masked_fill(~masks.op, -torch.inf).argmax(1)
    names = output.blueprint.masked_fill(~masks.blueprint, -torch.inf).argmax(1)
    chosen = ["wait" if op == 0 else fresh.blueprints[name] for op, name in zip(ops, names, strict=True)]
    kinds = [KINDS[key % 3] for key in fresh.sequences.host_keys.tolist()]
    assert chosen == [max(CHOICES, key=lambda choice, kind=kind: RETURNS[kind, choice]) for kind in kinds]
    assert 0.0 < training.final_metrics["mean_ratio"] < 1.0, "the gate reads it"
