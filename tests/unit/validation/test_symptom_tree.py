"""The fit of the tree: the best plan of every leaf, the same tree again, and no plan before the tree is read."""

from __future__ import annotations

import numpy as np
import pytest
from support.builders.plan_books import make_book

from simic.contracts.controllers import Plan, PlannedSeed, TreeLeaf, TreeSplit
from simic.validation.baselines.symptom_tree import Nodes, TreeSettings, fit_nodes, plans_to_choose

NAMES = [f"context.validation_{name}" for name in ("loss", "accuracy", "accuracy_delta_0")]


def leaf_of(nodes: Nodes, row: dict[str, float]) -> int:
    """Index of the leaf in which a host ends."""
    index = 0
    while isinstance(node := nodes[index], TreeSplit):
        index = node.left if row[node.feature] <= node.threshold else node.right
    return index


def least_error(values: np.ndarray, gains: np.ndarray, leaf_hosts: int) -> tuple[float, set[tuple[bool, ...]]]:
    """Least squared error of one split, over all features and thresholds, and the halves that reach it."""
    found: dict[tuple[bool, ...], float] = {}
    for column in values.T:
        for threshold in column:
            left = column <= threshold
            if min(left.sum(), (~left).sum()) >= leaf_hosts:
                parts = (gains[left], gains[~left])
                found[tuple(left)] = sum(((part - part.mean(axis=0)) ** 2).sum() for part in parts)
    least = min(found.values())
    return least, {half for half, error in found.items() if error <= least + 1e-9}


@pytest.mark.parametrize("seed", range(20))
def test_one_split_is_the_best_of_all_splits_and_each_leaf_takes_its_best_plan(seed: int) -> None:
    draw = np.random.default_rng(seed)
    values = draw.normal(size=(24, 3)).astype(np.float32)
    gains = draw.normal(size=(24, 3)) + np.outer(values[:, seed % 3] > 0, [0.0, 3.0, -3.0]) - [0.0, 1.5, -1.5]
    nodes = fit_nodes(NAMES, values, gains, TreeSettings(depth=1, leaf_hosts=4))
    leaves = np.array([leaf_of(nodes, dict(zip(NAMES, row, strict=True))) for row in values.tolist()])
    _, halves = least_error(values, gains, 4)
    assert isinstance(nodes[0], TreeSplit)
    assert tuple(leaves == nodes[0].left) in halves
    for leaf in set(leaves.tolist()):
        node = nodes[leaf]
        assert isinstance(node, TreeLeaf)
        assert node.plan == gains[leaves == leaf].mean(axis=0).argmax()


@pytest.mark.parametrize("seed", range(5))
def test_deeper_trees_keep_to_depth_and_size_and_lose_no_gain(seed: int) -> None:
    draw = np.random.default_rng(seed)
    values = draw.normal(size=(200, 3)).astype(np.float32)
    gains = draw.normal(size=(200, 4)) + 2.0 * (values > 0) @ draw.normal(size=(3, 4))
    settings = TreeSettings(depth=3, leaf_hosts=10)
    nodes = fit_nodes(NAMES, values, gains, settings)
    leaves = np.array([leaf_of(nodes, dict(zip(NAMES, row, strict=True))) for row in values.tolist()])
    assert len(nodes) <= 15
    assert np.unique(leaves, return_counts=True)[1].min() >= 10
    chosen = np.array([node.plan if isinstance(node, TreeLeaf) else -1 for node in nodes])[leaves]
    for leaf in np.unique(leaves):
        assert chosen[leaves == leaf][0] == gains[leaves == leaf].mean(axis=0).argmax()
    assert gains[np.arange(200), chosen].mean() > gains.mean(axis=0).max()
    assert fit_nodes(NAMES, values, gains, settings) == nodes


def test_what_no_feature_decides_is_one_leaf_and_of_equal_plans_the_first_wins() -> None:
    values = np.arange(40, dtype=np.float32).repeat(3).reshape(40, 3)
    gains = np.zeros((40, 3))
    assert fit_nodes(NAMES, values, gains, TreeSettings()) == [TreeLeaf(plan=0)]
    gains[:, 1] = gains[:, 2] = np.where(values[:, 0] < 20, 1.0, 2.0)
    assert fit_nodes(NAMES, values, gains, TreeSettings()) == [TreeLeaf(plan=1)], "leaves of one plan were not joined"


def seeds_at(*epochs: int) -> Plan:
    return Plan(seeds=[PlannedSeed(epoch=epoch, slot=slot, blueprint="gate") for slot, epoch in enumerate(epochs)])


def test_plans_begin_after_the_first_epoch_one_seed_at_a_time_and_equal_ones_count_once() -> None:
    book = make_book(seeds_at(0), {"a": seeds_at(1), "b": Plan(), "c": seeds_at(0, 1, 4), "d": seeds_at(2, 0)})
    assert [[(seed.slot, seed.epoch) for seed in plan.seeds] for plan in plans_to_choose(book)] == [
        [], [(0, 1)], [(0, 1), (1, 2), (2, 4)], [(1, 1), (0, 2)],
    ]  # fmt: skip
