"""Prioritised passes: bounded, weighted, and drawn by error."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
from support.builders.learning import bandit_episodes
from support.builders.snapshots import write_snapshot

from simic.contracts.settings.network import NetworkConfig
from simic.contracts.settings.safety import ConservativeConfig, SafetyConfig, Trigger
from simic.contracts.settings.training import ReplayConfig, TrainConfig
from simic.controllers.network import PolicyNetwork
from simic.hosts.plugins import blueprint_names
from simic.learning.history import History
from simic.learning.losses import Loss
from simic.learning.objectives.awr import awr_loss
from simic.learning.objectives.ppo import ppo_loss
from simic.learning.objectives.vtrace import vtrace_loss
from simic.learning.phases import fresh_network
from simic.learning.prioritised_passes import PrioritisedPasses
from simic.learning.safety.guard import Guard
from simic.replay.batch import SequenceBatch
from simic.replay.dataset import GraphDataset
from simic.replay.sampler import PassSampler

CONFIG = TrainConfig(network=NetworkConfig(hidden=8, layers=1), entropy_bonus=0.1)
RUNS = tuple(f"{i:032x}" for i in range(40))
ROWS = np.arange(40)


def passes(counts: PassSampler, **settings: float) -> PrioritisedPasses:
    return PrioritisedPasses(RUNS, counts, ReplayConfig(**settings), batch=8, updates=20, seed=0, history=History())


def counts(max_passes: int) -> PassSampler:
    return PassSampler(seed=0, batch_sequences=8, max_passes=max_passes)


def test_no_sequence_is_drawn_more_often_than_it_may_be() -> None:
    """One sequence has nearly all priority; it leaves when its passes are used up, and the others go on."""
    count = counts(max_passes=3)
    drawn, sizes = passes(count, alpha=1.0), []
    for number in range(3):
        for draw in drawn.draw_pass(number, ROWS):
            drawn.update(draw.rows, np.where(draw.rows == 7, 1e6, 1e-3))
            sizes.append(len(draw.rows))
    found = count.passes_of(RUNS)
    assert found.max() == found[7] == 3
    assert found.sum() == sum(sizes)
    assert min(sizes) > 0
    assert sum(sizes) > 90, "few repetitions are left out"


def test_only_sequences_of_the_pass_are_drawn() -> None:
    count = counts(max_passes=8)
    drawn = passes(count)
    for number, rows in enumerate((ROWS[:16], ROWS[10:])):
        assert all(np.isin(draw.rows, rows).all() for draw in drawn.draw_pass(number, rows))


def test_in_conservative_mode_priorities_decide_nothing_and_they_are_still_there_afterwards() -> None:
    guard = Guard(TrainConfig(safety=SafetyConfig(conservative=ConservativeConfig(healthy_updates=1))))
    history = History(guard=guard)
    config = ReplayConfig(alpha=1.0)
    count = counts(max_passes=100)
    drawn = PrioritisedPasses(RUNS, count, config, batch=8, updates=20, seed=0, history=history)
    shares = []
    for number in range(3):
        if number == 1:
            guard.become_conservative(Trigger.ERROR_RATE)
        sevens, total = 0, 0
        for draw in drawn.draw_pass(number, ROWS):
            if number == 1:
                assert (draw.weights == 1.0).all()
            drawn.update(draw.rows, np.where(draw.rows == 7, 1e6, 1e-3))
            sevens, total = sevens + int((draw.rows == 7).sum()), total + len(draw.rows)
        shares.append(sevens / total)
        guard.observe("theirs", number, {}, None, has_pressure=False)
    assert shares[1] < 0.2
    assert shares[2] > 0.9


def test_an_update_looks_only_at_the_sequences_of_the_draw_before(monkeypatch: pytest.MonkeyPatch) -> None:
    count, asked = counts(max_passes=3), list[int]()
    real = count.passes_left

    def passes_left(run_ids: list[str]) -> object:
        asked.append(len(run_ids))
        return real(run_ids)

    monkeypatch.setattr(count, "passes_left", passes_left)
    draws = list(passes(count).draw_pass(0, ROWS))
    assert len(draws) == 5
    assert asked[:2] == [len(ROWS)] * 2, "what is left for the pass, and what it may draw"
    assert max(asked[2:]) <= 8


def test_weights_are_those_of_a_plain_list() -> None:
    """``w = (N P)^-beta / max w`` with ``P`` from magnitudes to the power alpha; beta rises to 1 over the training."""
    drawn = passes(counts(max_passes=100), alpha=0.6, beta=0.4, eps=0.01)
    magnitudes = 1.0 + ROWS / 10.0
    priorities = np.ones(40)
    draws = 0
    for number in range(4):
        for draw in drawn.draw_pass(number, ROWS):
            share = priorities**0.6 / (priorities**0.6).sum()
            beta = 0.4 + 0.6 * min(1.0, draws / 20)
            weights = (40 * share[draw.rows]) ** -beta
            np.testing.assert_allclose(draw.weights, weights / weights.max(), rtol=1e-5)
            drawn.update(draw.rows, magnitudes[draw.rows])
            priorities[draw.rows] = magnitudes[draw.rows] + 0.01
            draws += 1
    assert draws == 20


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> GraphDataset:
    path = tmp_path_factory.mktemp("log") / "s"
    write_snapshot(path, bandit_episodes(range(24), noise=0.01), split="train")
    return GraphDataset.load(path, blueprints=blueprint_names())


LOSSES: dict[str, Callable[[PolicyNetwork, SequenceBatch], Loss]] = {
    "vtrace": lambda network, batch: vtrace_loss(network, batch, CONFIG, 2.0),
    "ppo": lambda network, batch: ppo_loss(network, network, batch, CONFIG, 2.0),
    "awr": lambda network, batch: awr_loss(network, batch, CONFIG, 2.0),
}


@pytest.mark.parametrize("name", LOSSES)
def test_a_loss_is_linear_in_the_weights_and_reports_the_errors(name: str, store: GraphDataset) -> None:
    network, batch = fresh_network(store, CONFIG, 0), store.batch(np.arange(12))
    ones, some = torch.ones(12), torch.linspace(0.1, 1.0, 12)

    def gradient(weights: torch.Tensor | None) -> torch.Tensor:
        loss = LOSSES[name](network, replace(batch, weights=weights))
        assert loss.errors is not None
        assert loss.errors.shape == batch.valid.shape
        assert not loss.errors.requires_grad
        parts = torch.autograd.grad(loss.total, list(network.parameters()), allow_unused=True)
        return torch.cat([part.flatten() for part in parts if part is not None])

    plain = gradient(None)
    torch.testing.assert_close(gradient(ones), plain, rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(gradient(some) + gradient(ones - some), plain, rtol=1e-4, atol=1e-6)
    assert not torch.allclose(gradient(some), gradient(ones - some), atol=1e-4)
