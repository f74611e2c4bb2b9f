"""Elastic weight consolidation: an exact Fisher diagonal, one penalty, and a memory that goes with the policy."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from support.builders.learning import bandit_branches, bandit_episodes
from support.builders.snapshots import write_snapshot
from support.builders.trainings import sealed
from torch import Tensor, nn
from torch.nn import functional

from simic.contracts.actions import HEADS
from simic.contracts.errors import ContractError, TrainingError
from simic.contracts.results.receipts import SnapshotManifest, TrainingReport
from simic.contracts.settings.continual import EwcConfig, LoraConfig
from simic.contracts.settings.network import NetworkConfig
from simic.contracts.settings.training import TrainConfig
from simic.controllers import heads
from simic.controllers.network import NetworkShape, PolicyNetwork
from simic.controllers.policy_files import load_policy
from simic.hosts.plugins import blueprint_names
from simic.learning.continual import ewc
from simic.learning.continual.ewc import Anchor, ElasticPenalty, deciding_parameters, fisher_diagonal
from simic.learning.continual.lora import adapt, effective_parameters, merged
from simic.learning.continual.memory import read_memory
from simic.learning.continual.per_sample import squared_gradient_sums
from simic.learning.history import History
from simic.learning.training_run import TrainingRun, WarmStart
from simic.replay.dataset import GraphDataset
from simic.runtime.seeds import generator
from simic.runtime.telemetry import read_metrics

SMALL = TrainConfig(
    network=NetworkConfig(hidden=8, layers=2),
    batch_sequences=8,
    cloning_passes=1,
    value_passes=1,
    vtrace_passes=2,
    round_passes=2,
    distil_passes=2,
    max_passes=100,
    min_experiences=10,
    min_commit_rate=0.0,
)
HELD = SMALL.model_copy(update={"ewc": EwcConfig(weight=1e6)})
EPISODES = 24


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("ewc")


@pytest.fixture(scope="module")
def log(root: Path) -> SnapshotManifest:
    return write_snapshot(root / "log", bandit_episodes(range(EPISODES)), split="train")


@pytest.fixture(scope="module")
def mixed(root: Path) -> SnapshotManifest:
    reports = [*bandit_branches(range(90)), *bandit_episodes(range(100, 124))]
    return write_snapshot(root / "mixed", reports, split="train")


@pytest.fixture(scope="module")
def store(log: SnapshotManifest) -> GraphDataset:
    return GraphDataset.load(Path(log.path), blueprints=blueprint_names())


@pytest.fixture(scope="module")
def forgetful(root: Path, log: SnapshotManifest) -> TrainingReport:
    return sealed(root, log, SMALL)


@pytest.fixture(scope="module")
def mindful(root: Path, log: SnapshotManifest) -> TrainingReport:
    return sealed(root, log, HELD)


def trained_after(
    root: Path, snapshot: SnapshotManifest, config: TrainConfig, start: TrainingReport, **kind: bool
) -> TrainingReport:
    return sealed(root, snapshot, config, WarmStart(Path(start.path), **{"is_continuation": False, **kind}))


def begun(store: GraphDataset, config: TrainConfig, start: TrainingReport, **kind: bool) -> TrainingRun:
    return TrainingRun.begin(
        store, config, WarmStart(Path(start.path), **{"is_continuation": False, **kind}), 0, History()
    )


def network(seed: int = 1) -> PolicyNetwork:
    """A policy that is far from uniform, so that draws, likeliest and logged actions differ."""
    own = PolicyNetwork(NetworkShape.of(SMALL.network, blueprint_names()), seed=seed)
    for head in (own.op_head, own.slot_head):
        last = head[-1]
        assert isinstance(last, nn.Linear)
        last.weight.data.mul_(150.0)
    return own


def test_simic_002_the_fisher_of_logistic_regression() -> None:
    """D18: p (1 - p) x^2, with labels drawn from the model."""
    model, rows = nn.Linear(2, 1, bias=False).double(), 40_000
    model.weight.data = torch.tensor([[0.7, -1.2]], dtype=torch.float64)
    x = torch.tensor([1.5, 0.4], dtype=torch.float64)
    draw = torch.Generator().manual_seed(0)

    def log_probs() -> Tensor:
        logits = model(x.expand(rows, 2)).squeeze(1)
        labels = torch.rand(rows, generator=draw, dtype=torch.float64) < logits.detach().sigmoid()
        return -functional.binary_cross_entropy_with_logits(logits, labels.double(), reduction="none")

    found = squared_gradient_sums(model, log_probs, lambda _: torch.arange(rows + 1))["weight"][0] / rows
    p = float(model(x).detach().sigmoid())
    torch.testing.assert_close(found, p * (1 - p) * x.square(), rtol=0.02, atol=0.0)


def test_d18_actions_are_drawn_from_the_policy(store: GraphDataset) -> None:
    """The gradient at the last bias of the operation is [a = k] - pi_k, of which the mean square is pi_k (1 - pi_k)."""
    own, many = network(), 60
    squares = torch.stack(
        [fisher_diagonal(own, store, EPISODES, seed).diagonal["op_head.2.bias"] for seed in range(many)]
    )
    rows = np.flatnonzero(store.masks.op[:, 1:].any(1).numpy())
    states, masks = store.states(rows)
    table = own.act(states).op.masked_fill(~masks.op, -torch.inf).softmax(1).detach()
    expected = (table * (1 - table)).mean(0)
    deviation = squares.std(0) / many**0.5
    assert ((squares.mean(0) - expected).abs() <= 4 * deviation + 1e-6).all()
    likeliest = torch.nn.functional.one_hot(table.argmax(1), table.shape[1])
    assert ((likeliest - table).square().mean(0) - expected).abs().max() > 0.02, "the likeliest ones would show"


def test_d18_the_fisher_is_the_mean_over_states_of_squares_of_one_backward_pass_each(store: GraphDataset) -> None:
    own, found = network(), fisher_diagonal(network(), store, 10, 3)
    assert found.samples == 10
    expected = {name: torch.zeros_like(value) for name, value in deciding_parameters(own).items()}
    rows = np.flatnonzero(store.masks.op[:, 1:].any(1).numpy())
    rows = np.sort(generator(3, "states").permutation(rows)[:10])
    states, masks = store.states(rows)
    for kept, own_way in zip(own.act(states), own.act_of_all_weights(states), strict=True):
        assert torch.equal(kept, own_way)
    uniforms = generator(3, "actions").random((10, len(HEADS)))
    drawn = heads.ActionDistribution(own.act(states), states.slot_ptr, masks, 0.0).sample(uniforms).actions
    for index, row in enumerate(rows.tolist()):
        one, mask = store.states(np.array([row]))
        own.zero_grad()
        output = own.act_of_all_weights(one)
        action = torch.from_numpy(drawn[index : index + 1])
        heads.ActionDistribution(output, one.slot_ptr, mask, 0.0).log_prob(action).joint.sum().backward()
        for name, value in own.named_parameters():
            if value.grad is not None:
                expected[name] += value.grad.square() / 10
    assert set(found.diagonal) == set(expected)
    for name, value in expected.items():
        torch.testing.assert_close(found.diagonal[name], value, rtol=1e-4, atol=1e-9)
    assert sum(float(value.sum()) for name, value in found.diagonal.items() if "value_encoder" in name) > 0.0


def test_d18_fewer_states_than_wanted_are_the_divisor(store: GraphDataset, monkeypatch: pytest.MonkeyPatch) -> None:
    """And batches do not matter."""
    whole = fisher_diagonal(network(), store, 200, 0)
    assert whole.samples == EPISODES, "one state of each episode leaves a choice"
    exactly = fisher_diagonal(network(), store, EPISODES, 0)
    assert all(torch.equal(exactly.diagonal[name], value) for name, value in whole.diagonal.items())
    monkeypatch.setattr(ewc, "_BATCH", 5)
    parts = fisher_diagonal(network(), store, 200, 0)
    for name, value in whole.diagonal.items():
        torch.testing.assert_close(parts.diagonal[name], value, rtol=1e-4, atol=1e-9)


@pytest.mark.parametrize("is_training", [True, False])
def test_d18_the_mode_of_the_network_and_its_gradients_stay(store: GraphDataset, is_training: bool) -> None:
    own = network().train(is_training)
    fisher_diagonal(own, store, 5, 0)
    assert own.training is is_training
    assert all(value.grad is None for value in own.parameters())


def test_data_without_a_choice_are_refused(store: GraphDataset) -> None:
    closed = store.masks._replace(op=store.masks.op & (torch.arange(store.masks.op.shape[1]) == 0))
    bare = GraphDataset(store.sequences, store.steps, closed, store.table, store.blueprints)
    with pytest.raises(TrainingError, match="no state of the training data leaves a choice"):
        fisher_diagonal(network(), bare, 5, 0)


def test_d18_the_penalty_and_its_gradient_have_lambda_once() -> None:
    own = network()
    live = {name: value for name, value in own.named_parameters() if not name.startswith("value_head.")}
    anchor = Anchor(live, {name: torch.rand_like(value) for name, value in deciding_parameters(own).items()})
    penalty = ElasticPenalty(0.1, anchor)  # copies, or the anchor would move along and have a gradient
    at_rest = penalty(own)
    assert isinstance(at_rest, Tensor) and float(at_rest.detach()) == 0.0
    at_rest.backward()
    assert all(value.grad is None or not value.grad.any() for value in own.parameters())
    own.zero_grad()
    with torch.no_grad():
        for value in own.parameters():
            value += 0.01
    moved = penalty(own)
    total = sum(float((0.01**2 * value).sum()) for value in anchor.fisher.values())
    assert float(moved.detach()) == pytest.approx(0.5 * 0.1 * total, rel=1e-4)
    moved.backward()
    for name, value in own.named_parameters():
        if name.startswith("value_head."):
            assert value.grad is None, "the value head is free"
        else:
            torch.testing.assert_close(value.grad, 0.1 * anchor.fisher[name] * 0.01, rtol=1e-3, atol=1e-9)


def test_an_anchor_does_not_move_with_the_network() -> None:
    own = network()
    weights = deciding_parameters(own)
    penalty = ElasticPenalty(1.0, Anchor(weights, {name: torch.ones_like(value) for name, value in weights.items()}))
    with torch.no_grad():
        own.op_head[0].weight.add_(1.0)  # type: ignore[operator]
    assert float(penalty(own).detach()) == pytest.approx(0.5 * own.op_head[0].weight.numel(), rel=1e-5)  # type: ignore[union-attr,operator]


def test_adapters_are_penalised_by_what_they_add() -> None:
    own = network()
    weights = deciding_parameters(own)
    penalty = ElasticPenalty(2.0, Anchor(weights, {name: torch.ones_like(value) for name, value in weights.items()}))
    adapt(own, LoraConfig(rank=2), torch.Generator().manual_seed(0))
    assert float(penalty(own).detach()) == 0.0
    for name, value in own.named_parameters():
        if name.endswith("lora_b"):
            value.data.normal_(generator=torch.Generator().manual_seed(1))
    plain = dict(merged(own).named_parameters())
    assert set(effective_parameters(own)) == set(plain)
    expected = sum(float((plain[name].detach() - value).square().sum()) for name, value in weights.items())
    found = penalty(own)
    assert float(found.detach()) == pytest.approx(expected, rel=1e-4)
    found.backward()
    assert all(value.grad is not None for name, value in own.named_parameters() if name.startswith("op_head.0.lora"))


def test_a_second_night_hardly_moves_the_weights_on_which_decisions_depend(
    root: Path, store: GraphDataset, mindful: TrainingReport, mixed: SnapshotManifest
) -> None:
    """Against a night without the penalty, on other data; the distance is in units of the Fisher information."""
    before = load_policy(Path(mindful.path)).network
    penalty = ElasticPenalty(2.0, Anchor(deciding_parameters(before), fisher_diagonal(before, store, 200, 0).diagonal))
    distances = {}
    for name, config in (("held", HELD), ("free", SMALL)):
        after = trained_after(root, mixed, config, mindful)
        distances[name] = float(penalty(load_policy(Path(after.path)).network).detach())
    assert 0.0 < distances["held"] < 0.3 * distances["free"], distances


def test_every_update_reports_the_penalty(root: Path, mindful: TrainingReport, mixed: SnapshotManifest) -> None:
    after = trained_after(root, mixed, HELD, mindful)
    penalties = [metrics["ewc_penalty"] for _, metrics in read_metrics(Path(after.curves_path))]
    assert len(penalties) == after.updates and penalties[0] == 0.0 and min(penalties[1:]) > 0.0
    assert after.metrics["ewc_samples"] == 200, "of 294 states that leave a choice"
    assert after.metrics["ewc_penalty"] > 0.0


def test_simic_002_the_fisher_goes_with_the_policy_and_is_consolidated(
    root: Path, store: GraphDataset, mindful: TrainingReport, log: SnapshotManifest
) -> None:
    config = HELD.model_copy(update={"ewc": EwcConfig(weight=1e6, decay=0.5)})
    first = memory(mindful)
    assert first.held is None
    training = begun(store, config, mindful)
    start = load_policy(Path(mindful.path)).network
    anchor = training._lineage.anchor
    assert anchor is not None
    for name, value in deciding_parameters(start).items():
        assert torch.equal(anchor.weights[name], value) and torch.equal(anchor.fisher[name], first.fisher[name])
    for _ in training.run():
        pass
    second = trained_after(root, log, config, mindful)
    own = memory(second)
    found = training.memory
    assert found is not None and own.held is not None
    for name, value in own.fisher.items():
        assert torch.equal(found.fisher[name], value)
        assert (value >= 0.5 * first.fisher[name]).all(), "the earlier one, decayed, is a part of it"
        assert torch.equal(own.held.fisher[name], first.fisher[name])


def test_rounds_of_a_run_are_held_to_the_policy_that_it_started_from(
    root: Path, store: GraphDataset, mindful: TrainingReport, log: SnapshotManifest
) -> None:
    second = trained_after(root, log, HELD, mindful)
    anchor = begun(store, HELD, second, is_continuation=True)._lineage.anchor
    assert anchor is not None
    for name, value in deciding_parameters(load_policy(Path(mindful.path)).network).items():
        assert torch.equal(anchor.weights[name], value)
    third = trained_after(root, log, HELD, second, is_continuation=True)
    held = memory(third).held
    assert held is not None and all(torch.equal(held.weights[name], anchor.weights[name]) for name in held.weights)


def test_rounds_after_a_training_from_nothing_are_held_to_nothing(store: GraphDataset, mindful: TrainingReport) -> None:
    training = begun(store, HELD, mindful, is_continuation=True)
    assert training.learner.penalty is None


def test_a_policy_without_a_memory_gets_one_from_the_data_at_hand(
    store: GraphDataset, forgetful: TrainingReport, caplog: pytest.LogCaptureFixture
) -> None:
    assert not (Path(forgetful.path) / "ewc.safetensors").exists()
    with caplog.at_level(logging.INFO, logger="simic"):
        anchor = begun(store, HELD, forgetful)._lineage.anchor
    assert "has no Fisher information of its own training; it is measured on 24 states" in caplog.text
    assert anchor is not None and sum(float(value.sum()) for value in anchor.fisher.values()) > 0.0
    with pytest.raises(ContractError, match=r"ewc\.safetensors is missing: expected it of a round"):
        begun(store, HELD, forgetful, is_continuation=True)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda tensors: {**tensors, "fisher/x": torch.ones(1)}, "should have"),
        (lambda tensors: {name: -value for name, value in tensors.items()}, "not finite or below 0"),
        (lambda tensors: {name: value * torch.nan for name, value in tensors.items()}, "not finite"),
        (lambda tensors: {name: value[:1] for name, value in tensors.items()}, "is missing, or not"),
        (lambda tensors: dict(list(tensors.items())[1:]), "is missing, or not"),
    ],
)
def test_a_memory_that_does_not_fit_is_refused(
    change: Any, message: str, mindful: TrainingReport, tmp_path: Path
) -> None:
    path = tmp_path / "ewc.safetensors"
    weights = deciding_parameters(load_policy(Path(mindful.path)).network)
    tensors = load_file(Path(mindful.path) / "ewc.safetensors")
    save_file(tensors, path)
    assert read_memory(tmp_path, weights) is not None
    save_file({name: value.contiguous() for name, value in change(tensors).items()}, path)
    with pytest.raises(ContractError, match=message):
        read_memory(tmp_path, weights)
    path.write_bytes(b"no safetensors")
    with pytest.raises(ContractError, match="malformed"):
        read_memory(tmp_path, weights)


def memory(report: TrainingReport) -> Any:
    return read_memory(Path(report.path), deciding_parameters(load_policy(Path(report.path)).network))
