"""Does the policy still commit? Rates by hand, and the alarm."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from support.builders.reports import BLUEPRINTS, episode
from support.builders.snapshots import write_snapshot

from simic.contracts.actions import Op
from simic.contracts.batches import OP_INDEX
from simic.contracts.errors import TrainingError
from simic.controllers.network import NetworkShape, PolicyNetwork
from simic.learning.commit_rates import check_commit_rate, commit_metrics, logged_commit_rates
from simic.learning.micro_batches import add_up, split_rows
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
    seen = [update(0.03, 0.5), update(0.01, 0.5), update(0.0, 0.0)]
    check_commit_rate(seen, 0.02)
    with pytest.raises(TrainingError, match=r"is 0\.0200, less than train\.min_commit_rate 0\.021"):
        check_commit_rate(seen, 0.021)
    check_commit_rate([update(0.0, 0.0)], 0.02)


def update(fossilize_rate: float, fossilize_legal: float) -> dict[str, float]:
    """The metrics of an update whose policy surely germinates."""
    sure = {"germinate_rate": 1.0, "germinate_legal": 1.0, "advance_mean": 0.5, "advance_legal": 1.0}
    return {**sure, "fossilize_rate": fossilize_rate, "fossilize_legal": fossilize_legal}


def test_the_rates_do_not_depend_on_how_episodes_are_batched(tmp_path: Path) -> None:
    """Fossilising is legal in one episode of eight: batches without one say nothing, and not that the rate is 0."""
    script = {2: Op.GERMINATE, 5: Op.ADVANCE, 12: Op.FOSSILIZE}
    reports = [r for key in range(16) for r in episode(key, script=script if key % 8 == 0 else {2: Op.GERMINATE})]
    write_snapshot(tmp_path / "s", reports, split="train")
    store, network = GraphDataset.load(tmp_path / "s", blueprints=BLUEPRINTS), with_biases()
    whole = logged_commit_rates(network, store, 16)
    assert whole["fossilize_legal"] == pytest.approx(1 / 8)
    assert whole["commit_rate"] > 0.1
    for batch in (1, 3, 8):
        assert logged_commit_rates(network, store, batch) == pytest.approx(whole, rel=1e-4)
    for most in (1, 3):
        total: dict[str, torch.Tensor] = {}
        for part in split_rows(16, most):
            batch = store.batch(np.arange(16)[part.rows])
            add_up(total, commit_metrics(network.act(batch.steps), batch), part.share)
        assert {name: float(value) for name, value in total.items()} == pytest.approx(whole, rel=1e-4)
