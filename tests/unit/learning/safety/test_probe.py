"""The KL between successive policies: what it measures, and that it changes nothing."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch
from support.builders.learning import bandit_episodes
from support.builders.snapshots import write_snapshot

from simic.contracts.actions import HEADS, Head
from simic.contracts.batches import HEAD_INDEX
from simic.contracts.settings.network import NetworkConfig
from simic.contracts.settings.safety import AnomalyConfig
from simic.contracts.settings.training import TrainConfig
from simic.controllers import heads
from simic.controllers.network import PolicyNetwork
from simic.hosts.plugins import blueprint_names
from simic.learning.phases import fresh_network
from simic.learning.safety.probe import PolicyProbe
from simic.replay.dataset import GraphDataset
from simic.snapshots.manifest import read_manifest

CONFIG = TrainConfig(network=NetworkConfig(hidden=8, layers=1))
EXPLORATION = CONFIG.network.exploration


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> GraphDataset:
    root: Path = tmp_path_factory.mktemp("probe")
    snapshot = write_snapshot(root / "s", bandit_episodes(range(24)), split="train")
    manifest = read_manifest(Path(snapshot.path))
    return GraphDataset.of_snapshot(manifest, blueprints=blueprint_names(), max_bytes=1 << 30, cache=root)


@pytest.fixture
def network(store: GraphDataset) -> PolicyNetwork:
    return fresh_network(store, CONFIG, seed=0).eval()


def probe(store: GraphDataset, network: PolicyNetwork, every: int = 1, states: int = 32) -> PolicyProbe:
    return PolicyProbe(store, network, AnomalyConfig(kl_updates=every, kl_states=states), EXPLORATION)


def move(network: PolicyNetwork, size: float) -> None:
    draw = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter += size * torch.randn(parameter.shape, generator=draw)


def measured(one: PolicyProbe, network: PolicyNetwork, size: float) -> float:
    one.prepare(1)
    move(network, size)
    found = one.measure()
    assert found is not None
    return found


def test_h2_a_policy_that_stays_has_divergence_0_and_one_that_jumps_a_large_one(
    store: GraphDataset, network: PolicyNetwork
) -> None:
    one = probe(store, network)
    assert measured(one, network, 0.0) == pytest.approx(0.0, abs=1e-7)
    small = measured(one, network, 0.01)
    assert 0.0 < small < 0.05
    assert measured(one, network, 1.0) > 10 * small


def test_h2_it_is_the_mean_over_states_of_the_sum_over_relevant_heads(
    store: GraphDataset, network: PolicyNetwork
) -> None:
    """Against the definition, head by head, on all states of the log."""
    steps = len(store.steps.rewards)
    one, before = probe(store, network, states=steps), copy.deepcopy(network)
    found = measured(one, network, 0.1)
    rows = torch.arange(steps).numpy()
    states, masks = store.states(rows)
    with torch.no_grad():
        old, new = before.act(states), network.act(states)
    actions = store.steps.actions
    before, after = (heads.ActionDistribution(one, states.slot_ptr, masks, EXPLORATION) for one in (old, new))
    each = before.kl(after, actions)
    total = sum(
        float(each[row, HEAD_INDEX[head]])
        for row in range(steps)
        for head in HEADS
        if bool(heads.relevant_heads(actions)[row, HEAD_INDEX[head]])
    )
    assert found == pytest.approx(total / steps, rel=1e-5)


def test_h6_a_head_that_the_log_never_used_cannot_inflate_the_divergence(
    store: GraphDataset, network: PolicyNetwork
) -> None:
    """Where WAIT is always the action, whatever the other heads do, only the operation counts."""
    whole, waits = probe(store, network), torch.full_like(store.steps.actions, -1)
    waits[:, HEAD_INDEX[Head.OP]] = 0
    steps = store.steps._replace(actions=waits)
    waited = GraphDataset(store.sequences, steps, store.masks, store.table, store.blueprints)
    waiting, draw = probe(waited, network), torch.Generator().manual_seed(1)
    for one in (whole, waiting):
        one.prepare(1)
    with torch.no_grad():
        for parameter in network.slot_head.parameters():
            parameter += torch.randn(parameter.shape, generator=draw)
    assert waiting.measure() == pytest.approx(0.0, abs=1e-6)
    assert (whole.measure() or 0.0) > 0.1


def test_only_every_nth_update_is_measured_and_0_measures_none(store: GraphDataset, network: PolicyNetwork) -> None:
    one = probe(store, network, every=3)
    seen = []
    for number in range(1, 8):
        one.prepare(number)
        seen.append(one.measure() is not None)
    assert seen == [False, False, True, False, False, True, False]
    assert not any(probe(store, network, every=0).is_due(number) for number in range(9))


def test_measuring_draws_no_random_number_and_changes_no_tensor(store: GraphDataset, network: PolicyNetwork) -> None:
    one, state = probe(store, network), torch.random.get_rng_state()
    before = {name: tensor.clone() for name, tensor in network.state_dict().items()}
    one.prepare(1)
    one.measure()
    assert torch.equal(torch.random.get_rng_state(), state)
    assert all(torch.equal(before[name], tensor) for name, tensor in network.state_dict().items())
    assert all(parameter.grad is None for parameter in network.parameters())
