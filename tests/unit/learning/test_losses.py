"""What the losses see, and what they must not see."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.builders.learning import bandit_episodes
from support.builders.reports import BLUEPRINTS, episode
from support.builders.snapshots import write_snapshot
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from simic.contracts.actions import HEADS, OPS, RELEVANT_HEADS, Op
from simic.contracts.batches import OP_INDEX
from simic.contracts.settings.network import NetworkConfig
from simic.contracts.settings.training import TrainConfig
from simic.controllers import heads
from simic.controllers.network import NetworkShape, PolicyNetwork
from simic.hosts.plugins import blueprint_names
from simic.learning.losses import Loss, cloning_loss, explained_variance, value_fit_loss
from simic.learning.objectives.vtrace import vtrace_loss
from simic.numerics.vtrace import vtrace
from simic.replay.batch import SequenceBatch
from simic.replay.dataset import GraphDataset

CONFIG = TrainConfig(entropy_bonus=0.01)
SCALE = 5.0
"""Of advantages, points."""


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> GraphDataset:
    """Twelve episodes, three of them truncated."""
    path = tmp_path_factory.mktemp("snapshot") / "s"
    reports = [r for key in range(12) for r in episode(key, truncate_at=4 + key if key % 4 == 0 else None)]
    write_snapshot(path, reports, split="train")
    return GraphDataset.load(path, blueprints=BLUEPRINTS)


@pytest.fixture
def network() -> PolicyNetwork:
    network = PolicyNetwork(NetworkShape(hidden=16, layers=1, blueprints=BLUEPRINTS), seed=3)
    network.set_value_scale(10.0, 8.0)
    return network


def gradients(network: PolicyNetwork, total: Tensor) -> dict[str, Tensor]:
    network.zero_grad()
    total.backward()
    return {n: torch.zeros_like(p) if p.grad is None else p.grad.clone() for n, p in network.named_parameters()}


class _Operations(TorchDispatchMode):
    """Counts the operations that torch carries out."""

    def __init__(self) -> None:
        super().__init__()
        self.counts = Counter[str]()

    def __torch_dispatch__(self, function: Any, _types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.counts[function.overloadpacket.__name__] += 1
        return function(*args, **(kwargs or {}))


def test_m8_an_update_copies_no_features_and_no_states(store: GraphDataset, network: PolicyNetwork) -> None:
    """M8: the network and V-trace copy nothing, and no column is there twice."""
    with _Operations() as seen:
        batch = store.batch(np.arange(6))
        output, values = network.act_and_value(batch.steps, batch.with_finals)
        (output.op.sum() + output.slot.sum() + values.sum()).backward()
    assert {name: seen.counts[name] for name in ("clone", "copy_")} == {"clone": 0, "copy_": 0}
    assert batch.steps.layer_x.data_ptr() == batch.with_finals.layer_x.data_ptr()
    with _Operations() as seen:
        vtrace_loss(network, batch, CONFIG, SCALE)
    assert seen.counts["clone"] == 0


LOSSES: list[Callable[[PolicyNetwork, SequenceBatch], Loss]] = [
    lambda network, batch: cloning_loss(network, batch, 0.02),
    value_fit_loss,
    lambda network, batch: vtrace_loss(network, batch, CONFIG, SCALE),
]


@pytest.mark.parametrize("loss", LOSSES)
def test_order_within_a_batch_does_not_matter(store: GraphDataset, network: PolicyNetwork, loss: Any) -> None:
    ids = np.array([3, 7, 1, 10, 4])
    forwards, backwards = (loss(network, store.batch(rows)) for rows in (ids, ids[::-1].copy()))
    torch.testing.assert_close(forwards.total, backwards.total, rtol=1e-5, atol=1e-5)
    for name, value in forwards.metrics.items():
        torch.testing.assert_close(value, backwards.metrics[name], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", ["advantage_mean", "value_loss"])
def test_d5_h3_sequences_neither_leak_nor_count_their_padding(
    store: GraphDataset, network: PolicyNetwork, name: str
) -> None:
    """A batch's loss is the mean over steps of what its sequences give alone, however much padding stands between."""
    lengths = store.sequences.lengths
    ids = np.array([int(lengths.argmin()), int(lengths.argmax()), int(np.argsort(lengths)[1])])
    whole = vtrace_loss(network, store.batch(ids), CONFIG, SCALE).metrics[name]
    alone = [vtrace_loss(network, store.batch(ids[i : i + 1]), CONFIG, SCALE).metrics[name] for i in range(3)]
    expected = sum(float(x) * int(lengths[i]) for x, i in zip(alone, ids, strict=True)) / int(lengths[ids].sum())
    assert float(whole) == pytest.approx(expected, rel=1e-4, abs=1e-5)


def test_the_policy_loss_brings_every_head_to_equal_noise(store: GraphDataset, network: PolicyNetwork) -> None:
    """-adv log pi, entry by entry: a head's sum over its k relevant of N steps, divided by sqrt(N k)."""
    batch = store.batch(np.arange(12))
    with torch.no_grad():
        output, ptr = network.act(batch.steps), batch.steps.slot_ptr
        distribution = heads.ActionDistribution(output, ptr, batch.masks, CONFIG.network.exploration)
        log_prob = distribution.log_prob(batch.actions)
        own, following = batch.successors(network.value(batch.with_finals))
        advantages = vtrace(
            log_prob_target=batch.to_time_major(log_prob.joint),
            log_prob_behaviour=batch.log_prob_behaviour,
            rewards=batch.rewards,
            discounts=batch.discounts,
            values=own,
            next_values=following,
            is_cut=batch.is_cut,
        ).pg_advantages
    expected, steps = 0.0, len(batch.actions)
    for index, head in enumerate(HEADS):
        rows = [row for row in range(steps) if head in RELEVANT_HEADS[OPS[int(batch.actions[row, 0])]]]
        products = [
            float(advantages[batch.time[row], batch.sequence[row]]) / SCALE * float(log_prob.heads[row, index])
            for row in rows
        ]
        expected -= sum(products) / (steps * max(1, len(rows))) ** 0.5
    found = vtrace_loss(network, batch, CONFIG, SCALE).metrics["policy_loss"]
    assert float(found) == pytest.approx(expected, rel=1e-4)


def test_d8_each_group_learns_from_its_own_loss_alone(store: GraphDataset, network: PolicyNetwork) -> None:
    """The policy's gradient does not reach the value's parameters, nor the other way round."""
    batch = store.batch(np.arange(6))
    together = gradients(network, vtrace_loss(network, batch, CONFIG, SCALE).total)
    cloned = gradients(network, cloning_loss(network, batch, 0.02).total)
    fitted = gradients(network, value_fit_loss(network, batch).total)
    for name in together:
        is_value = name.startswith("value")
        assert together[name].abs().sum() > 0 or "normalise" in name or "norms" in name
        assert not (cloned[name].any() if is_value else fitted[name].any()), name


def test_the_total_is_the_weighted_sum_of_its_parts(store: GraphDataset, network: PolicyNetwork) -> None:
    weighted = CONFIG.model_copy(update={"entropy_bonus": 0.3, "cloning_weight": 0.7})
    total, metrics, _ = vtrace_loss(network, store.batch(np.arange(12)), weighted, SCALE)
    found = metrics["policy_loss"] + metrics["value_loss"] - 0.3 * metrics["entropy"] + 0.7 * metrics["cloning_loss"]
    torch.testing.assert_close(total.detach(), found)
    entropies = sum(metrics[f"entropy_{head.value}"] for head in HEADS)
    torch.testing.assert_close(metrics["entropy"], entropies)


def test_h4_the_advantage_reads_each_steps_own_successor(store: GraphDataset, network: PolicyNetwork) -> None:
    """On-policy with lambda 0 and gamma g: advantage = r + g V(s') - V(s), so its mean can be summed by hand."""
    batch = store.batch(np.arange(12))
    with torch.no_grad():
        network.value_head[2].weight.mul_(300.0)
        values = network.value(batch.with_finals)
        output = network.act(batch.steps)
        joint = heads.ActionDistribution(output, batch.steps.slot_ptr, batch.masks, 0.02).log_prob(batch.actions).joint
    on_policy = SequenceBatch(**{**batch.__dict__, "log_prob_behaviour": batch.to_time_major(joint)})
    metrics = vtrace_loss(network, on_policy, CONFIG.model_copy(update={"lambda_": 0.0}), SCALE).metrics
    count, total, row = len(batch.actions), 0.0, 0
    for place, length in enumerate(batch.valid.sum(0).tolist()):
        for step in range(length):
            after = values[count + place] if step == length - 1 else values[row + 1]
            # With lambda 0 the target of the step after is its own one-step target.
            target = after
            if step < length - 1:
                later = values[count + place] if step == length - 2 else values[row + 2]
                target = batch.rewards[step + 1, place] + batch.discounts[step + 1, place] * later
            total += float(batch.rewards[step, place] + batch.discounts[step, place] * target - values[row])
            row += 1
    assert float(metrics["advantage_mean"]) == pytest.approx(total / count, rel=1e-3, abs=1e-4)


def test_h6_heads_that_never_mattered_get_no_gradient(store: GraphDataset, network: PolicyNetwork) -> None:
    """Only waiting in the batch: neither loss, entropy nor cloning touches slots and their factors."""
    batch = store.batch(np.arange(4))
    calm = torch.where((batch.actions[:, :1] == OP_INDEX[Op.WAIT]).expand_as(batch.actions), batch.actions, -1)
    calm[:, 0] = OP_INDEX[Op.WAIT]
    changed = SequenceBatch(**{**batch.__dict__, "actions": calm})
    found = gradients(network, vtrace_loss(network, changed, CONFIG, SCALE).total)
    assert not any(found[name].any() for name in found if name.startswith("slot_head"))
    assert found["op_head.2.weight"].any()
    metrics = vtrace_loss(network, changed, CONFIG, SCALE).metrics
    assert [float(metrics[f"entropy_{head.value}"]) for head in HEADS[1:]] == [0.0] * 6


def test_h6_a_head_that_never_mattered_changes_no_divergence(store: GraphDataset, network: PolicyNetwork) -> None:
    """Only waiting in the batch: slots may be scored in any way, the divergence from the behaviour stays."""
    batch = store.batch(np.arange(4))
    calm = torch.full_like(batch.actions, -1)
    calm[:, 0] = OP_INDEX[Op.WAIT]
    waiting = SequenceBatch(**{**batch.__dict__, "actions": calm})
    before = vtrace_loss(network, waiting, CONFIG, SCALE).metrics["behaviour_kl"]
    with torch.no_grad():
        for name, parameter in network.named_parameters():
            if name.startswith("slot_head"):
                parameter.add_(torch.randn(parameter.shape, generator=torch.Generator().manual_seed(0)))
    assert float(before) > 0
    assert torch.equal(vtrace_loss(network, waiting, CONFIG, SCALE).metrics["behaviour_kl"], before)


def test_d7_a_bound_of_zero_reaches_the_loss(store: GraphDataset, network: PolicyNetwork) -> None:
    """Then no step has an advantage, and every value is its own target."""
    zeros = dict.fromkeys(("rho_bar", "c_bar", "pg_rho_bar", "lambda_"), 0.0)
    metrics = vtrace_loss(network, store.batch(np.arange(12)), TrainConfig(**zeros), SCALE).metrics
    assert [float(metrics[name]) for name in ("advantage_mean", "advantage_sd", "value_loss")] == [0.0, 0.0, 0.0]


def test_d7_a_trace_of_zero_reaches_the_loss_by_either_setting(store: GraphDataset, network: PolicyNetwork) -> None:
    """Both leave only the first difference of the sum, so the targets are equal."""

    def errors(**settings: float) -> torch.Tensor:
        config = CONFIG.model_copy(update=settings)
        found = vtrace_loss(network, store.batch(np.arange(12)), config, SCALE).errors
        assert found is not None
        return found

    assert torch.equal(errors(c_bar=0.0), errors(lambda_=0.0))
    assert not torch.allclose(errors(c_bar=0.0), errors(), atol=1e-3)


def test_the_policy_gradient_has_a_bound_of_its_own(store: GraphDataset, network: PolicyNetwork) -> None:
    """It scales the policy's part of the loss where it holds, and changes no target of the value."""
    batch = store.batch(np.arange(12))
    rare = SequenceBatch(**{**batch.__dict__, "log_prob_behaviour": batch.log_prob_behaviour - 10.0 * batch.valid})
    configs = (CONFIG.model_copy(update={"pg_rho_bar": bound}) for bound in (1.0, 2.0))
    plain, twice = (vtrace_loss(network, rare, config, SCALE).metrics for config in configs)
    assert torch.equal(plain["value_loss"], twice["value_loss"])
    torch.testing.assert_close(twice["policy_loss"], 2.0 * plain["policy_loss"])


def test_the_explained_variance_is_the_share_of_the_targets_variance(
    store: GraphDataset, network: PolicyNetwork
) -> None:
    """Not of the values', of which a value that does not vary would explain all."""
    batch = store.batch(np.arange(12))
    loss = vtrace_loss(network, batch, CONFIG, SCALE)
    assert loss.errors is not None
    with torch.no_grad():
        own, _ = batch.successors(network.value(batch.with_finals))
    errors = batch.valid_only(loss.errors)
    expected = 1.0 - errors.var(correction=0) / (batch.valid_only(own) + errors).var(correction=0)
    torch.testing.assert_close(loss.metrics["explained_variance"], expected, atol=1e-5, rtol=1e-5)


def test_h1_a_collapsed_head_shows_in_its_own_entropy(store: GraphDataset, network: PolicyNetwork) -> None:
    batch = store.batch(np.arange(12))
    before = vtrace_loss(network, batch, CONFIG, SCALE).metrics
    with torch.no_grad():
        network.op_head[2].bias[OP_INDEX[Op.WAIT]] = 50.0
    after = vtrace_loss(network, batch, CONFIG, SCALE).metrics
    assert {f"entropy_{head.value}" for head in HEADS} <= set(after)
    assert 3 * float(after["entropy_op"]) < float(before["entropy_op"])
    assert torch.equal(after["entropy_slot"], before["entropy_slot"])


def test_h1_entropies_are_per_head_and_those_of_a_uniform_policy(store: GraphDataset, network: PolicyNetwork) -> None:
    """An untrained policy is uniform over what is available: entropy is ln of the count."""
    metrics = vtrace_loss(network, store.batch(np.arange(12)), CONFIG, SCALE).metrics
    assert float(metrics["entropy_blueprint"]) == pytest.approx(np.log(len(BLUEPRINTS)), abs=0.02)
    assert float(metrics["entropy_tempo"]) == pytest.approx(np.log(3), abs=0.02)
    assert float(metrics["entropy_alpha_speed"]) == pytest.approx(np.log(4), abs=0.02)


def test_l1_a_saturated_policy_still_learns(store: GraphDataset, network: PolicyNetwork) -> None:
    """Even when one operation has all the mass, every loss still moves its logit."""
    with torch.no_grad():
        network.op_head[2].bias[OP_INDEX[Op.WAIT]] = 15.0
    batch = store.batch(np.arange(12))
    for loss in (LOSSES[0], LOSSES[2]):
        found = gradients(network, loss(network, batch).total)["op_head.2.bias"]
        assert float(found[OP_INDEX[Op.GERMINATE]].abs()) > 1e-9


def test_l15_points_or_any_other_unit_give_the_same_gradient(store: GraphDataset, network: PolicyNetwork) -> None:
    """One fixed scale: rewards, value scale and advantage scale times 8 change nothing."""
    batch = store.batch(np.arange(6))
    plain = gradients(network, vtrace_loss(network, batch, CONFIG, SCALE).total)
    network.set_value_scale(80.0, 64.0)
    scaled = SequenceBatch(**{**batch.__dict__, "rewards": batch.rewards * 8, "returns": batch.returns * 8})
    found = gradients(network, vtrace_loss(network, scaled, CONFIG, 8 * SCALE).total)
    for name, gradient in plain.items():
        torch.testing.assert_close(found[name], gradient, rtol=1e-4, atol=1e-6)


def test_cloning_a_perfect_copy_costs_the_behaviours_entropy(tmp_path: Path) -> None:
    """The gap is 0 when the policy's log-probabilities are those of the log."""
    write_snapshot(tmp_path / "s", bandit_episodes(range(60)), split="train")
    store = GraphDataset.load(tmp_path / "s", blueprints=blueprint_names())
    network = PolicyNetwork(NetworkShape.of(NetworkConfig(hidden=16, layers=1), store.blueprints), seed=0)
    with torch.no_grad():
        network.op_head[2].bias[OP_INDEX[Op.GERMINATE]] = float(np.log(2.0))
        for head in (network.op_head, network.slot_head):
            head[2].weight.zero_()
    batch = store.batch(np.arange(60))
    result = cloning_loss(network, batch, exploration=0.0)
    assert float(result.metrics["cloning_gap"]) == pytest.approx(0.0, abs=1e-5)
    certain = CONFIG.model_copy(update={"network": NetworkConfig(exploration=0.0)})
    ratios = vtrace_loss(network, batch, certain, SCALE).metrics
    assert float(ratios["mean_ratio"]) == pytest.approx(1.0, abs=1e-5)
    assert float(ratios["effective_sample_share"]) == pytest.approx(1.0, abs=1e-5)


def test_simic001_far_off_policy_is_finite_and_counted(store: GraphDataset, network: PolicyNetwork) -> None:
    batch = store.batch(np.arange(6))
    far = SequenceBatch(**{**batch.__dict__, "log_prob_behaviour": batch.log_prob_behaviour - 50.0 * batch.valid})
    result = vtrace_loss(network, far, CONFIG, SCALE)
    assert torch.isfinite(result.total)
    assert all(torch.isfinite(value) for value in result.metrics.values())
    assert float(result.metrics["clamp_count"]) == float(batch.valid.sum())


def test_c2_explained_variance_is_0_where_the_targets_do_not_vary() -> None:
    targets, zeros = torch.tensor([1.0, 3.0, 5.0]), torch.zeros(3)
    assert float(explained_variance(targets, targets)) == 1.0
    assert float(explained_variance(zeros, targets)) == pytest.approx(0.0)
    assert float(explained_variance(zeros, torch.full((3,), 7.0))) == 0.0


def test_l13_a_truncated_episode_is_bootstrapped_from_its_final_state_and_a_terminated_one_never(
    store: GraphDataset, network: PolicyNetwork
) -> None:
    """With the constant value v and the same weights, a truncated return ends in gamma^k v, a terminated one in 0."""
    with torch.no_grad():
        network.value_head[2].weight.zero_()
        network.value_head[2].bias.zero_()
    lengths = store.sequences.lengths
    for row, bootstrap in ((int(lengths.argmin()), 10.0), (int(lengths.argmax()), 0.0)):
        batch, length = store.batch(np.array([row])), int(lengths[row])
        expected = batch.returns[:, 0] + bootstrap * 0.99 ** torch.arange(length, 0, -1)
        loss = torch.nn.functional.smooth_l1_loss(torch.full((length,), 10.0 / 8.0), expected / 8.0)
        assert value_fit_loss(network, batch).total.item() == pytest.approx(float(loss), rel=1e-4)


def test_high2_stored_log_probabilities_are_recomputed_exactly(store: GraphDataset, network: PolicyNetwork) -> None:
    """What the policy said when it sampled equals what the learner computes for the same rows."""
    batch = store.batch(np.arange(12))
    output = network.act(batch.steps)
    uniforms = np.random.default_rng(0).random((len(batch.actions), len(HEADS)))
    distribution = heads.ActionDistribution(output, batch.steps.slot_ptr, batch.masks, 0.02)
    decisions = distribution.sample(uniforms)
    again = distribution.log_prob(torch.from_numpy(decisions.actions.astype(np.int64)))
    np.testing.assert_allclose(again.heads.detach().numpy(), np.nan_to_num(decisions.log_probs), atol=1e-5)
