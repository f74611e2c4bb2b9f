"""Does the policy still commit? Rates by hand, and the alarm."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from support.builders.reports import BLUEPRINTS, episode
from support.builders.snapshots import write_snapshot

from simic.contracts.actions import Op
from simic.contracts.batches import OP_INDEX
from simic.contracts.errors import TrainingError
from simic.controllers.network import NetworkShape, PolicyNetwork
from simic.learning.losses import commit_metrics
from simic.learning.phases import check_commit_rate
from simic.replay.dataset import GraphDataset

SHAPE = NetworkShape(hidden=16, layers=1, blueprints=BLUEPRINTS)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> GraphDataset:
    """Two episodes in which everything is legal once, and one that may only wait."""
    path = tmp_path_factory.mktemp("snapshot") / "s"
    write_snapshot(path, [*episode(1), *episode(2), *episode(3, script={})], split="train")
    return GraphDataset.load(path, blueprints=BLUEPRINTS)


def with_biases(**biases: float) -> PolicyNetwork:
    network = PolicyNetwork(SHAPE, seed=0)
    with torch.no_grad():
        network.op_head[2].weight.zero_()
        for name, bias in biases.items():
            network.op_head[2].bias[OP_INDEX[Op(name)]] = bias
    return network


def rates(network: PolicyNetwork, store: GraphDataset) -> dict[str, float]:
    batch = store.batch(np.arange(3))
    return {name: float(value) for name, value in commit_metrics(network.act(batch.steps), batch).items()}


def test_an_indifferent_policy_commits_by_the_toss_of_two_coins(store: GraphDataset) -> None:
    """One legal step each to germinate and to fossilise, each against waiting only: one half times one half."""
    found = rates(with_biases(), store)
    assert found["germinate_rate"] == pytest.approx(0.5, abs=1e-5)
    assert found["fossilize_rate"] == pytest.approx(0.5, abs=1e-5)
    assert found["commit_rate"] == pytest.approx(0.25, abs=1e-5)
    assert found["advance_mean"] == pytest.approx(0.5, abs=1e-5)
    assert found["fossilize_legal"] == pytest.approx(2 / 3)


def test_a_policy_that_never_germinates_commits_nothing_whatever_it_would_fossilise(store: GraphDataset) -> None:
    found = rates(with_biases(GERMINATE=-30.0, FOSSILIZE=30.0), store)
    assert found["fossilize_rate"] == pytest.approx(1.0, abs=1e-5)
    assert found["commit_rate"] == pytest.approx(0.0, abs=1e-5)


def test_c2_rates_of_what_was_never_legal_are_0(store: GraphDataset) -> None:
    (waiting,) = (row for row in range(3) if not store.batch(np.array([row])).masks.op[:, 1:].any())
    batch = store.batch(np.array([waiting]))
    found = commit_metrics(with_biases().act(batch.steps), batch)
    assert {name: float(value) for name, value in found.items()} == dict.fromkeys(found, 0.0)


def test_the_alarm_rings_below_the_bound_and_only_with_evidence() -> None:
    seen = [{"commit_rate": 0.03, "fossilize_legal": 0.5}, {"commit_rate": 0.01, "fossilize_legal": 0.5}]
    check_commit_rate(seen, 0.02)
    with pytest.raises(TrainingError, match=r"is 0\.0200, less than train\.min_commit_rate 0\.021"):
        check_commit_rate(seen, 0.021)
    check_commit_rate([{"commit_rate": 0.0, "fossilize_legal": 0.0}], 0.02)
