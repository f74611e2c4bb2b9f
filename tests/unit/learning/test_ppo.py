"""PPO on a log: the reference, the trust region, and what a batch must not see."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
import torch
from support.builders.learning import CHOICES, KINDS, RETURNS, bandit_episodes
from support.builders.reports import BLUEPRINTS, episode
from support.builders.snapshots import write_snapshot

from simic.contracts.actions import Op
from simic.contracts.batches import OP_INDEX
from simic.contracts.settings.network import NetworkConfig
from simic.contracts.settings.training import TrainConfig
from simic.controllers import heads
from simic.controllers.network import NetworkShape, PolicyNetwork
from simic.hosts.plugins import blueprint_names
from simic.learning.objectives.ppo import ppo_loss
from simic.learning.phases import Record
from simic.learning.training_run import TrainingRun
from simic.replay.batch import SequenceBatch
from simic.replay.dataset import GraphDataset

CONFIG = TrainConfig(
    objective="ppo",
    network=NetworkConfig(hidden=16, layers=1),
    batch_sequences=16,
    cloning_passes=2,
    value_passes=2,
    vtrace_passes=6,
    ppo_epochs=3,
    ppo_max_kl=10.0,
    min_commit_rate=0.0,
)
EPISODES = 144


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> GraphDataset:
    path = tmp_path_factory.mktemp("log") / "s"
    write_snapshot(path, bandit_episodes(range(EPISODES), noise=0.01), split="train")
    return GraphDataset.load(path, blueprints=blueprint_names())


@pytest.fixture(scope="module")
def batch(tmp_path_factory: pytest.TempPathFactory) -> SequenceBatch:
    """Eight episodes with every operation, two of them truncated."""
    path = tmp_path_factory.mktemp("episodes") / "s"
    reports = [r for key in range(8) for r in episode(key, truncate_at=4 + key if key % 4 == 0 else None)]
    write_snapshot(path, reports, split="train")
    return GraphDataset.load(path, blueprints=BLUEPRINTS).batch(np.arange(8))


@pytest.fixture
def network() -> PolicyNetwork:
    network = PolicyNetwork(NetworkShape(hidden=16, layers=1, blueprints=BLUEPRINTS), seed=3)
    network.set_value_scale(10.0, 8.0)
    return network


def ppo_records(training: TrainingRun) -> list[Mapping[str, float]]:
    return [record.metrics for record in training.run() if record.phase == "ppo"]


@pytest.fixture(scope="module")
def trained(store: GraphDataset) -> tuple[TrainingRun, list[Record]]:
    training = TrainingRun.begin(store, CONFIG, None, 0)
    return training, list(training.run())


def test_the_right_choice_is_learned_for_every_kind_of_host(
    trained: tuple[TrainingRun, list[Record]], tmp_path: Path
) -> None:
    """On hosts that the log does not have; the oracle is the table of the world."""
    write_snapshot(tmp_path / "s", bandit_episodes(range(300, 330), noise=0.0), split="train")
    fresh = GraphDataset.load(tmp_path / "s", blueprints=blueprint_names())
    states, masks = fresh.states(fresh.sequences.starts)
    output = trained[0].policy().act(states)
    ops = output.op.masked_fill(~masks.op, -torch.inf).argmax(1)
    names = output.blueprint.masked_fill(~masks.blueprint, -torch.inf).argmax(1)
    chosen = ["wait" if op == 0 else fresh.blueprints[name] for op, name in zip(ops, names, strict=True)]
    kinds = [KINDS[key % 3] for key in fresh.sequences.host_keys.tolist()]
    assert chosen == [max(CHOICES, key=lambda choice, kind=kind: RETURNS[kind, choice]) for kind in kinds]


def test_the_first_ratio_to_a_new_reference_is_exactly_1_and_later_passes_clip(
    trained: tuple[TrainingRun, list[Record]],
) -> None:
    seen = [record.metrics for record in trained[1] if record.phase == "ppo"]
    updates = EPISODES // CONFIG.batch_sequences
    assert len(seen) == CONFIG.vtrace_passes * updates
    for number, metrics in enumerate(seen):
        is_first = number % (CONFIG.ppo_epochs * updates) == 0
        assert (metrics["kl"] == 0.0) is is_first
        assert not is_first or metrics["clip_share"] == 0.0
    assert max(metrics["clip_share"] for metrics in seen[updates : 3 * updates]) > 0.0
    final = trained[0].final_metrics
    assert 0.0 < final["mean_ratio"] <= 1.0, "the gate reads it"
    assert final["updates_left_out"] == 0.0
    assert trained[0].learner.updates == trained[0].planned_updates


def test_far_from_the_reference_the_other_passes_that_share_it_are_left_out(store: GraphDataset) -> None:
    """With a bound near 0 the second update of each reference is the last; the next reference starts anew."""
    config = CONFIG.model_copy(update={"ppo_max_kl": 1e-9, "cloning_passes": 0, "value_passes": 0})
    training = TrainingRun.begin(store, config, None, 0)
    seen = ppo_records(training)
    assert [metrics["kl"] == 0.0 for metrics in seen] == [True, False, True, False]
    left_out = CONFIG.vtrace_passes * EPISODES // CONFIG.batch_sequences - 4
    assert training.final_metrics["updates_left_out"] == left_out
    counts = training._passes.sampler.passes_of(store.sequences.run_ids)
    assert counts.sum() == 4 * CONFIG.batch_sequences, "an episode that was not reached keeps its pass"


def test_equal_seeds_give_equal_weights(store: GraphDataset) -> None:
    config = CONFIG.model_copy(update={"vtrace_passes": 1, "cloning_passes": 0, "value_passes": 1})
    weights = []
    for seed in (0, 0, 1):
        training = TrainingRun.begin(store, config, None, seed)
        ppo_records(training)
        weights.append(torch.cat([parameter.flatten() for parameter in training.policy().parameters()]))
    assert torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[0], weights[2])


def only_waiting(batch: SequenceBatch) -> SequenceBatch:
    actions = torch.full_like(batch.actions, -1)
    actions[:, 0] = OP_INDEX[Op.WAIT]
    return SequenceBatch(**{**batch.__dict__, "actions": actions})


def moved(network: PolicyNetwork, part: str = "") -> PolicyNetwork:
    """Return a copy whose parameters with ``part`` in their name moved."""
    other, draw = copy.deepcopy(network), torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, parameter in other.named_parameters():
            if part in name:
                parameter.add_(0.1 * torch.randn(parameter.shape, generator=draw))
    return other


def test_h6_a_head_that_never_mattered_changes_no_part_and_gets_no_gradient(
    batch: SequenceBatch, network: PolicyNetwork
) -> None:
    calm = only_waiting(batch)
    reference, other = moved(network, "op_head"), moved(network, "slot_head")
    before, after = (ppo_loss(one, reference, calm, CONFIG, 5.0) for one in (network, other))
    assert float(before.metrics["kl"]) > 0.0
    for name, value in before.metrics.items():
        assert torch.equal(after.metrics[name], value), name
    before.total.backward()
    assert not any(p.grad is not None and p.grad.any() for n, p in network.named_parameters() if "slot_head" in n)
    assert network.op_head[2].weight.grad.any()


def test_the_total_is_the_weighted_sum_of_its_parts(batch: SequenceBatch, network: PolicyNetwork) -> None:
    config = CONFIG.model_copy(update={"entropy_bonus": 0.3, "cloning_weight": 0.7})
    total, metrics, _ = ppo_loss(network, moved(network), batch, config, 5.0)
    found = metrics["policy_loss"] + metrics["value_loss"] - 0.3 * metrics["entropy"] + 0.7 * metrics["cloning_loss"]
    torch.testing.assert_close(total.detach(), found)


def test_an_off_policy_step_weighs_at_most_rho_bar_and_less_if_the_reference_takes_it_less(
    batch: SequenceBatch, network: PolicyNetwork
) -> None:
    """The same log, of a behaviour that equals the reference, or was twice or half as likely to do what it did."""
    with torch.no_grad():
        output = network.act(batch.steps)
        distribution = heads.ActionDistribution(output, batch.steps.slot_ptr, batch.masks, CONFIG.network.exploration)
        own = distribution.log_prob(batch.actions)
    joint, spread = batch.to_time_major(own.joint), []
    for factor in (1.0, 2.0, 0.5):
        behaviour = joint + np.log(factor) * batch.valid
        changed = SequenceBatch(**{**batch.__dict__, "log_prob_behaviour": behaviour})
        spread.append(float(ppo_loss(network, network, changed, CONFIG, 5.0).metrics["advantage_sd"]))
    assert spread == pytest.approx([spread[0], spread[0] / 2, spread[0]], rel=1e-4)


def test_the_parts_by_hand(store: GraphDataset) -> None:
    """With lambda 1 the advantage is the return to go less the reference's value; the reference weighs the steps."""
    shape = NetworkShape(hidden=16, layers=1, blueprints=blueprint_names())
    reference = PolicyNetwork(shape, seed=3)
    reference.set_value_scale(10.0, 8.0)
    policy, batch = moved(reference), store.batch(np.arange(24))
    found = ppo_loss(policy, reference, batch, CONFIG.model_copy(update={"lambda_": 1.0}), 4.0)
    with torch.no_grad():
        before, after = (
            batch.distribution(one.act(batch.steps), CONFIG.network.exploration) for one in (reference, policy)
        )
        values = [one.value(batch.steps) for one in (reference, policy)]
    old, new = (one.log_prob(batch.actions) for one in (before, after))
    returns = batch.returns[batch.time, batch.sequence]
    weights = (old.joint - batch.log_prob_behaviour[batch.time, batch.sequence]).exp().clamp(max=CONFIG.rho_bar)
    assert float(weights.min()) < 0.8 < float(weights.max())
    gain = (weights * (returns - values[0]) / 4.0).unsqueeze(1)
    ratio, clip = (new.heads - old.heads).exp(), CONFIG.ppo_clip
    objective = torch.minimum(ratio * gain, ratio.clamp(1 - clip, 1 + clip) * gain)
    objective = torch.where(gain < 0, torch.maximum(objective, CONFIG.ppo_dual_clip * gain), objective)
    policy_loss = -heads.equal_noise_sum(objective, heads.relevant_heads(batch.actions))
    torch.testing.assert_close(found.metrics["policy_loss"], policy_loss, atol=1e-4, rtol=1e-4)
    assert found.errors is not None
    errors = found.errors[batch.time, batch.sequence]
    torch.testing.assert_close(errors, returns - values[1], atol=1e-3, rtol=1e-4)
    kl = before.kl(after, batch.actions).sum(1).mean()
    torch.testing.assert_close(found.metrics["kl"], kl)
    assert float(kl) != pytest.approx(float(after.kl(before, batch.actions).sum(1).mean()), rel=1e-3)
