"""Which episodes a round learns from."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from support.builders.learning import bandit_episodes
from support.builders.snapshots import write_snapshot

from simic.contracts.settings.network import NetworkConfig
from simic.contracts.settings.training import TrainConfig
from simic.hosts.plugins import blueprint_names
from simic.learning.learner import Learner
from simic.learning.phases import fitted_scale, fresh_network, round_rows
from simic.replay.dataset import GraphDataset
from simic.replay.sampler import PassSampler


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> GraphDataset:
    path = tmp_path_factory.mktemp("snapshot") / "s"
    write_snapshot(path, bandit_episodes(range(30)), split="train")
    return GraphDataset.load(path, blueprints=blueprint_names())


def seen(store: GraphDataset, passes: dict[int, int], max_passes: int) -> PassSampler:
    sampler = PassSampler(seed=0, batch_sequences=8, max_passes=max_passes)
    for row, count in passes.items():
        for _ in range(count):
            list(sampler.draw_pass(store.sequences.run_ids, np.array([row])))
    return sampler


def test_all_new_episodes_in_every_pass_and_a_bounded_share_of_old_ones(store: GraphDataset) -> None:
    sampler = seen(store, dict.fromkeys(range(20), 1), max_passes=4)
    plan = round_rows(store, store.ordinary, sampler, passes=3, replay_ratio=0.5, seed=1)
    assert len(plan) == 3
    for rows in plan:
        assert set(range(20, 30)) <= set(rows.tolist())
        assert len(rows) == len(set(rows.tolist())) == 15
    assert plan[0].tolist() != plan[1].tolist()
    again = round_rows(store, store.ordinary, sampler, passes=3, replay_ratio=0.5, seed=1)
    assert [rows.tolist() for rows in again] == [rows.tolist() for rows in plan]


def test_no_episode_exceeds_its_passes(store: GraphDataset) -> None:
    """The plan can always be drawn: what is worn out stays out, also when it wears out within the round."""
    sampler = seen(store, {**dict.fromkeys(range(10), 4), **dict.fromkeys(range(10, 20), 3)}, max_passes=4)
    plan = round_rows(store, store.ordinary, sampler, passes=4, replay_ratio=10.0, seed=0)
    old = [row for rows in plan for row in rows.tolist() if row < 20]
    assert sorted(old) == list(range(10, 20))
    for rows in plan:
        list(sampler.draw_pass(store.sequences.run_ids, rows))
    assert sampler.passes_of(store.sequences.run_ids).max() == 4


def test_new_episodes_too_wear_out(store: GraphDataset) -> None:
    sampler = seen(store, {}, max_passes=2)
    assert [len(rows) for rows in round_rows(store, store.ordinary, sampler, passes=4, replay_ratio=1.0, seed=0)] == [
        30,
        30,
    ]


def test_without_new_episodes_the_old_ones_go_on_and_then_it_ends(store: GraphDataset) -> None:
    sampler = seen(store, dict.fromkeys(range(30), 3), max_passes=4)
    plan = round_rows(store, store.ordinary, sampler, passes=4, replay_ratio=1.0, seed=0)
    assert [len(rows) for rows in plan] == [30]
    for rows in plan:
        list(sampler.draw_pass(store.sequences.run_ids, rows))
    assert round_rows(store, store.ordinary, sampler, passes=4, replay_ratio=1.0, seed=0) == []


def ended_and_cut(root: Path, *, cut: bool, ended: bool) -> GraphDataset:
    """Episodes of keys 0 to 29 that ended, and those of keys 30 to 59, which were cut off."""
    reports = bandit_episodes(range(0 if ended else 30, 60 if cut else 30))
    reports = [
        one.model_copy(update={"terminated": False, "truncated": True})
        if one.host.key >= 30 and one.final_state is not None
        else one
        for one in reports
    ]
    return GraphDataset.load(Path(write_snapshot(root, reports, split="train").path), blueprints=blueprint_names())


def scales(store: GraphDataset) -> list[float]:
    """Mean and scale of the values, and the scale of advantages around that mean."""
    config = TrainConfig(network=NetworkConfig(hidden=8, layers=1))
    network = fresh_network(store, config, 0)
    network.value_head[-1].weight.data.zero_()
    scale = fitted_scale(Learner(network, config), store, 8)
    return [float(network.value_mean), float(network.value_scale), scale]


def test_partial_returns_enter_no_scale_unless_there_are_no_others(tmp_path: Path) -> None:
    ended = ended_and_cut(tmp_path / "ended", cut=False, ended=True)
    assert ended.has_end.all()
    mixed = ended_and_cut(tmp_path / "mixed", cut=True, ended=True)
    assert mixed.has_end.sum() == 30 and len(mixed) == 60
    assert scales(mixed) == pytest.approx(scales(ended), rel=1e-6)
    cut = ended_and_cut(tmp_path / "cut", cut=True, ended=False)
    assert not cut.has_end.any()
    assert scales(cut)[:2] == pytest.approx(
        [float(cut.steps.returns.double().mean()), float(cut.steps.returns.double().std(correction=0))], rel=1e-6
    )
