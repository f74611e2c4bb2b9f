"""Counted passes: what changes from update to update besides the learning rate."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from pydantic import ValidationError
from support.builders.learning import bandit_episodes
from support.builders.snapshots import write_snapshot

from simic.contracts.settings.network import NetworkConfig
from simic.contracts.settings.training import TrainConfig
from simic.hosts.plugins import blueprint_names
from simic.learning.counted_passes import CountedPasses
from simic.learning.learner import Learner
from simic.learning.losses import Loss
from simic.learning.objective import LearningTask, PassState
from simic.learning.objectives import OBJECTIVES
from simic.learning.phases import fresh_network
from simic.learning.prioritised_passes import PrioritisedPasses
from simic.replay.batch import SequenceBatch
from simic.replay.dataset import GraphDataset
from simic.replay.live.prioritised import Draw
from simic.replay.sampler import PassSampler

CONFIG = TrainConfig(network=NetworkConfig(hidden=8, layers=1), batch_sequences=8, ppo_max_kl=100.0)
PASSES = 3


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> GraphDataset:
    root = tmp_path_factory.mktemp("passes")
    write_snapshot(root / "log", bandit_episodes(range(24)), split="train")
    return GraphDataset.load(root / "log", blueprints=blueprint_names())


def objective_of(name: str, store: GraphDataset, **changes: Any) -> CountedPasses:
    config = CONFIG.model_copy(update={"objective": name, "min_commit_rate": 0.0, **changes})
    sampler = PassSampler(seed=0, batch_sequences=8, max_passes=8)
    state = PassState(sampler, [store.ordinary] * PASSES, warmup=0)
    found = OBJECTIVES.load(name).begin(
        LearningTask(store, Learner(fresh_network(store, config, 0), config), config, 0, False, state)
    )
    assert isinstance(found, CountedPasses)
    return found


@pytest.mark.parametrize("name", ["vtrace", "ppo", "awr"])
def test_the_entropy_bonus_falls_over_all_passes(name: str, store: GraphDataset) -> None:
    objective = objective_of(name, store, entropy_bonus=0.4, entropy_bonus_last=0.1)
    found = [record.metrics["entropy_bonus"] for record in objective.run()]
    assert len(found) == PASSES * 3
    assert found == pytest.approx(np.linspace(0.4, 0.1, len(found)), rel=1e-5)


@pytest.mark.parametrize("name", ["vtrace", "ppo", "awr"])
def test_the_loss_has_the_bonus_of_the_update(name: str, store: GraphDataset) -> None:
    objective = objective_of(name, store, entropy_bonus=0.4, entropy_bonus_last=0.0)
    batch = store.batch(store.ordinary[:8])
    first = objective.loss(batch, 1.0)
    objective.config = objective.config.model_copy(update={"entropy_bonus": 0.1})
    later = objective.loss(batch, 1.0)
    assert float((later.total - first.total).detach()) == pytest.approx(0.3 * float(first.metrics["entropy"]), rel=1e-3)


def test_a_constant_bonus_is_the_one_of_the_log(store: GraphDataset) -> None:
    weights = []
    for changes in ({}, {"entropy_bonus_last": 0.25}):
        objective = objective_of("vtrace", store, entropy_bonus=0.25, **changes)
        records = list(objective.run())
        assert ("entropy_bonus" in records[0].metrics) is bool(changes)
        weights.append(objective.task.learner.network.state_dict())
    assert all(torch.equal(value, weights[1][name]) for name, value in weights[0].items())


def test_a_bonus_that_would_rise_is_refused() -> None:
    with pytest.raises(ValidationError, match=r"train\.entropy_bonus_last 0\.2 exceeds train\.entropy_bonus 0\.1"):
        TrainConfig(entropy_bonus=0.1, entropy_bonus_last=0.2)


@pytest.mark.parametrize("most", [None, 3])
@pytest.mark.parametrize("name", ["vtrace", "ppo", "awr", "cloning"])
def test_prioritised_passes_learn_with_the_importance_weights_of_their_draws(
    name: str, most: int | None, store: GraphDataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also in parts: each sequence keeps its own weight."""
    objective = objective_of(name, store, sampling="prioritised", micro_batch_sequences=most)
    drawn, learned = list[Draw](), list[torch.Tensor]()
    real_draws, real_loss = PrioritisedPasses.draw_pass, objective.loss

    def draw_pass(self: PrioritisedPasses, *arguments: Any) -> Iterator[Draw]:
        for draw in real_draws(self, *arguments):
            drawn.append(draw)
            yield draw

    def loss(batch: SequenceBatch, scale: float) -> Loss:
        assert batch.weights is not None
        learned.append(batch.weights)
        return real_loss(batch, scale)

    monkeypatch.setattr(PrioritisedPasses, "draw_pass", draw_pass)
    monkeypatch.setattr(objective, "loss", loss)
    assert len(list(objective.run())) == len(drawn) == PASSES * 3
    weights = np.concatenate([draw.weights for draw in drawn])
    assert np.array_equal(torch.cat(learned).numpy(), weights)
    assert weights.min() < 0.9 < weights.max() == 1.0, "some episodes are drawn more often than others"
