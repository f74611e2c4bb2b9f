"""Low-rank adapters: nothing at birth, frozen weights, and an ordinary policy at the end."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support.builders.learning import bandit_branches, bandit_episodes
from support.builders.snapshots import write_snapshot
from support.builders.trainings import sealed
from torch import nn

from simic.contracts.errors import ConfigError, ContractError
from simic.contracts.results.receipts import SnapshotManifest, TrainingReport
from simic.contracts.settings.continual import LoraConfig
from simic.contracts.settings.network import NetworkConfig
from simic.contracts.settings.training import TrainConfig
from simic.controllers.network import NetworkShape, PolicyNetwork
from simic.controllers.policy_files import load_policy
from simic.hosts.plugins import blueprint_names
from simic.learning.continual.lora import LoraLinear, adapt, merged
from simic.learning.history import History
from simic.learning.training_run import TrainingRun, WarmStart
from simic.replay.dataset import GraphDataset

SMALL = TrainConfig(
    network=NetworkConfig(hidden=8, layers=1),
    batch_sequences=8,
    cloning_passes=1,
    value_passes=1,
    vtrace_passes=2,
    round_passes=2,
    distil_passes=2,
    min_experiences=10,
    min_commit_rate=0.0,
)
ADAPTED = SMALL.model_copy(update={"lora": LoraConfig(rank=4)})


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def two_layers(inputs: int, hidden: int, outputs: int) -> nn.Sequential:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(7)
        return nn.Sequential(nn.Linear(inputs, hidden), nn.ReLU(), nn.Linear(hidden, outputs, bias=False))


def moved(network: nn.Module) -> None:
    """Give the factors B, which are 0 at birth, other values."""
    for layer in network.modules():
        if isinstance(layer, LoraLinear):
            layer.lora_b.data.normal_(generator=generator(3))


@given(
    sizes=st.tuples(*(st.integers(1, 12) for _ in range(3))),
    rank=st.integers(1, 64),
    alpha=st.floats(0.1, 64.0),
    seed=st.integers(0, 2**31),
)
def test_d19_a_merged_adapter_equals_the_unmerged_one(
    sizes: tuple[int, int, int], rank: int, alpha: float, seed: int
) -> None:
    network = two_layers(*sizes).double()
    adapt(network, LoraConfig(rank=rank, alpha=alpha), generator(seed))
    network.double()
    moved(network)
    inputs = torch.randn(5, sizes[0], generator=generator(seed), dtype=torch.float64)
    plain = merged(network)
    assert not any(isinstance(layer, LoraLinear) for layer in plain.modules())
    torch.testing.assert_close(plain(inputs), network.eval()(inputs), rtol=1e-6, atol=1e-6)


@given(rank=st.integers(0, 64), seed=st.integers(0, 2**31))
def test_d19_an_adapter_changes_nothing_at_birth(rank: int, seed: int) -> None:
    network = two_layers(6, 5, 3)
    inputs = torch.randn(4, 6, generator=generator(seed))
    before = network(inputs)
    adapt(network, LoraConfig(rank=rank), generator(seed))
    assert torch.equal(network(inputs), before)


def test_d19_rank_0_is_no_adapter_and_freezes_nothing() -> None:
    network = two_layers(6, 5, 3)
    adapt(network, LoraConfig(rank=0), generator())
    assert not any(isinstance(layer, LoraLinear) for layer in network.modules())
    assert all(parameter.requires_grad for parameter in network.parameters())


def test_the_dropout_leaves_out_inputs_of_the_adapter_alone_and_only_while_training() -> None:
    network = nn.Sequential(nn.Linear(1000, 1, bias=False))
    adapt(network, LoraConfig(rank=1, alpha=1.0, dropout=0.25), generator())
    layer = network[0]
    assert isinstance(layer, LoraLinear)
    layer.weight.data.fill_(1.0)
    layer.lora_a.data.fill_(1.0)
    layer.lora_b.data.fill_(1.0)
    ones = torch.ones(1, 1000)

    def output() -> float:
        return float(network(ones).detach())

    network.eval()
    assert output() == 2000.0, "neither part leaves anything out"
    network.train()
    found = output() - 1000.0
    assert 0.75 * found == pytest.approx(750, abs=60), "kept inputs count 1 / (1 - share) times"
    assert found == pytest.approx(round(0.75 * found) / 0.75)
    assert output() - 1000.0 != found, "drawn anew"


def test_every_linear_layer_of_a_policy_is_adapted_and_all_else_is_frozen() -> None:
    network = PolicyNetwork(NetworkShape.of(SMALL.network, blueprint_names()))
    plain = {name for name, layer in network.named_modules() if isinstance(layer, nn.Linear)}
    adapt(network, LoraConfig(rank=2), generator())
    learning = {name for name, parameter in network.named_parameters() if parameter.requires_grad}
    assert learning == {f"{name}.lora_{factor}" for name in plain for factor in "ab"}
    assert set(merged(network).state_dict()) == set(PolicyNetwork(network.shape).state_dict())


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("lora")


@pytest.fixture(scope="module")
def log(root: Path) -> SnapshotManifest:
    return write_snapshot(root / "log", bandit_episodes(range(24)), split="train")


@pytest.fixture(scope="module")
def mixed(root: Path) -> SnapshotManifest:
    reports = [*bandit_branches(range(90)), *bandit_episodes(range(100, 124))]
    return write_snapshot(root / "mixed", reports, split="train")


@pytest.fixture(scope="module")
def first(root: Path, log: SnapshotManifest) -> TrainingReport:
    return sealed(root, log, SMALL, None)


def begun(snapshot: SnapshotManifest, config: TrainConfig, start: WarmStart) -> TrainingRun:
    store = GraphDataset.load(Path(snapshot.path), blueprints=blueprint_names())
    return TrainingRun.begin(store, config, start, 0, History())


@pytest.mark.parametrize("objective", ["vtrace", "ppo", "distil"])
def test_frozen_weights_keep_their_bits_and_the_policy_still_moves(
    objective: str, first: TrainingReport, request: pytest.FixtureRequest
) -> None:
    snapshot = request.getfixturevalue("mixed" if objective == "distil" else "log")
    config = ADAPTED if objective == "distil" else ADAPTED.model_copy(update={"objective": objective})
    training = begun(snapshot, config, WarmStart(Path(first.path), is_continuation=False))
    before = load_policy(Path(first.path)).network.state_dict()
    assert all(torch.equal(value, before[name]) for name, value in training.policy().state_dict().items())
    for _ in training.run():
        pass
    now, plain = training.learner.network.state_dict(), training.policy().state_dict()
    assert all(torch.equal(now[name], value) for name, value in before.items())
    assert set(plain) == set(before)
    changed = {name for name in before if not torch.equal(plain[name], before[name])}
    assert {name.partition(".")[0] for name in changed} == {
        "policy_encoder",
        "op_head",
        "slot_head",
        "value_encoder",
        "value_head",
    }


def test_a_sealed_policy_is_an_ordinary_one_and_a_round_goes_on_with_its_adapters(
    root: Path, first: TrainingReport, mixed: SnapshotManifest
) -> None:
    """A round averages what is served, the merged weights, and learns on from its own factors."""
    second = sealed(root, mixed, ADAPTED, WarmStart(Path(first.path), is_continuation=False))
    network, card = load_policy(Path(second.path))
    assert card.parameters == load_policy(Path(first.path)).card.parameters
    config = ADAPTED.model_copy(update={"average": 0.75})
    training = begun(mixed, config, WarmStart(Path(second.path), is_continuation=True))
    assert torch.equal(training.policy().op_head[0].weight, network.op_head[0].weight)
    base = load_policy(Path(first.path)).network.state_dict()
    own = training.learner.network.state_dict()
    assert all(torch.equal(own[name], value) for name, value in base.items()), "the base is the start policy's"
    again = sealed(root, mixed, ADAPTED, WarmStart(Path(second.path), is_continuation=True))
    assert again.updates > second.updates
    assert load_policy(Path(again.path)).card.parameters == card.parameters


def test_a_round_averages_merged_weights(root: Path, first: TrainingReport, log: SnapshotManifest) -> None:
    config = ADAPTED.model_copy(update={"average": 0.75, "max_passes": 100})
    second = sealed(root, log, config, WarmStart(Path(first.path), is_continuation=False))
    third = sealed(root, log, config, WarmStart(Path(second.path), is_continuation=True))
    training = begun(log, config, WarmStart(Path(third.path), is_continuation=True))
    for _ in training.run():
        pass
    served = load_policy(Path(third.path)).network.op_head[0].weight
    own = merged(training.learner.network).op_head[0].weight
    torch.testing.assert_close(training.policy().op_head[0].weight, own.lerp(served, 0.75))
    assert not torch.equal(own, served)


@pytest.mark.parametrize(
    ("made", "continued", "message"),
    [(ADAPTED, SMALL, "unknown moments"), (SMALL, ADAPTED, "missing or of another shape")],
)
def test_a_round_with_other_adapters_than_the_one_before_is_refused(
    made: TrainConfig, continued: TrainConfig, message: str, first: TrainingReport, log: SnapshotManifest, root: Path
) -> None:
    before = sealed(root, log, made, WarmStart(Path(first.path), is_continuation=False))
    with pytest.raises(ContractError, match=message):
        begun(log, continued, WarmStart(Path(before.path), is_continuation=True))


def test_adapters_without_a_policy_to_start_from_are_refused(tmp_path: Path, log: SnapshotManifest) -> None:
    with pytest.raises(ConfigError, match=r"train\.lora\.rank is 4, but this training starts from nothing"):
        sealed(tmp_path, log, ADAPTED, None)


def test_measurements_between_updates_are_without_dropout(first: TrainingReport, log: SnapshotManifest) -> None:
    """Otherwise what a phase measures on its way would depend on draws."""
    measured, learned = list[bool](), list[bool]()
    training = begun(log, ADAPTED, WarmStart(Path(first.path), is_continuation=False))
    network = training.learner.network
    _watch(network, "value", lambda: measured.append(network.training))
    _watch(network, "act_and_value", lambda: learned.append(network.training))
    for _ in training.run():
        assert not network.training
    assert measured and not any(measured), "the scale of the advantages"
    assert learned and all(learned), "the losses"


def _watch(network: Any, name: str, note: Callable[[], None]) -> None:
    real = getattr(network, name)

    def watched(*arguments: Any) -> Any:
        note()
        return real(*arguments)

    setattr(network, name, watched)
