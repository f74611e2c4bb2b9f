"""Which episodes a round learns from."""

from __future__ import annotations

import numpy as np
import pytest
from support.builders.learning import bandit_episodes
from support.builders.snapshots import write_snapshot

from simic.hosts.plugins import blueprint_names
from simic.learning.phases import round_rows
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
