"""The sum tree: found by share, changed in place, the same bits whatever order led there."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simic.contracts.errors import ContractError
from simic.replay.live.prioritised import SumTree

CAPACITIES = (1, 2, 7, 64, 2048, 2049, 9000, 70_000)
"""Below, at and above the level that is searched whole."""


def tree_of(weights: np.ndarray) -> SumTree:
    tree = SumTree(len(weights))
    tree.set(np.arange(len(weights)), weights)
    return tree


@pytest.mark.parametrize("capacity", CAPACITIES)
def test_a_mark_finds_the_row_whose_share_it_falls_into(capacity: int) -> None:
    rng = np.random.default_rng(capacity)
    weights = rng.integers(0, 4, capacity).astype(np.float64)
    weights[rng.integers(capacity)] = 3.0
    tree = tree_of(weights)
    bounds = np.cumsum(weights)
    marks = np.concatenate([rng.random(500) * bounds[-1], np.unique(bounds)[:-1], [0.0]])
    assert tree.total == bounds[-1]
    assert tree.find(marks).tolist() == np.searchsorted(bounds, marks, side="right").tolist()


@pytest.mark.parametrize("capacity", CAPACITIES)
def test_the_total_stays_the_sum_of_the_leaves(capacity: int) -> None:
    """Sums never drift: after many changes the tree has the bits of one built from its leaves."""
    rng = np.random.default_rng(1)
    tree = SumTree(capacity)
    for _ in range(300):
        rows = rng.integers(0, capacity, 64)
        tree.set(rows, rng.random(64) * 10.0 ** rng.integers(-9, 9, 64))
    fresh = SumTree(capacity)
    fresh.replace_all(tree.weights())
    assert tree.total == fresh.total
    assert np.array_equal(tree._nodes[tree._crown_at :], fresh._nodes[fresh._crown_at :])


def test_of_repeated_rows_the_last_counts() -> None:
    tree = SumTree(5000)
    tree.set(np.array([9, 4200, 9]), np.array([1.0, 2.0, 5.0]))
    assert tree.get(np.array([9, 4200, 0])).tolist() == [5.0, 2.0, 0.0]
    assert tree.total == 7.0


@given(
    st.lists(st.sampled_from([0.0, 5e-324, 1e-300, 1e-17, 0.1, 1.0, 3.0, 1e17, 1e100]), min_size=1, max_size=40),
    st.lists(st.floats(0.0, 1.0), min_size=1, max_size=8),
    st.integers(0, 9000),
)
def test_a_row_without_weight_is_never_found(weights: list[float], shares: list[float], offset: int) -> None:
    """However badly the sums round: marks at either end, weights that vanish beside others."""
    tree = SumTree(9040)
    tree.set(np.arange(len(weights)) + offset, np.array(weights))
    if tree.total == 0.0:
        with pytest.raises(ContractError, match="every weight is 0"):
            tree.find(np.zeros(1))
        return
    found = tree.find(np.array([*shares, 0.0, 1.0]) * tree.total)
    assert (tree.get(found) > 0.0).all()


def test_a_mark_that_rounds_to_the_end_of_its_share_stays_in_it() -> None:
    """A tie on the way up and one on the way down leave rest = left, whose right neighbour weighs nothing."""
    ulp = 2.0**-52
    tree = SumTree(4096)
    tree.set(np.array([0, 2]), np.array([1.5 * ulp, 1.0 + 2 * ulp]))
    mark = np.array([1.0 + 3 * ulp])
    assert mark[0] < tree.total and mark[0] - 1.5 * ulp == 1.0 + 2 * ulp
    assert tree.find(mark).tolist() == [2]


@pytest.mark.parametrize("wrong", [np.nan, np.inf, -np.inf, -1e-9, 1e101])
def test_d23_what_is_no_weight_is_refused_and_changes_nothing(wrong: float) -> None:
    tree = tree_of(np.ones(10))
    with pytest.raises(ContractError, match="NaN, negative or beyond"):
        tree.set(np.array([1, 2]), np.array([7.0, wrong]))
    with pytest.raises(ContractError, match="NaN, negative or beyond"):
        tree.replace_all(np.full(10, wrong))
    assert tree.weights().tolist() == [1.0] * 10


def test_rows_and_marks_outside_are_refused() -> None:
    tree = tree_of(np.ones(10))
    for rows in ([-1], [10], [0, 3, 99]):
        with pytest.raises(ContractError, match=r"\[0, 10\)"):
            tree.set(np.array(rows), np.ones(len(rows)))
    for mark in (-0.1, 10.1, np.nan):
        with pytest.raises(ContractError, match="marks"):
            tree.find(np.array([mark]))
    with pytest.raises(ContractError, match="10 weights"):
        tree.replace_all(np.ones(9))
    with pytest.raises(ContractError, match="at least one"):
        SumTree(0)
    tree.set(np.array([], dtype=np.int64), np.array([]))
    assert tree.find(np.array([])).tolist() == []


@pytest.mark.parametrize("capacity", [3000, 70_000])
def test_buffer002_an_update_costs_its_path_and_nothing_else(capacity: int) -> None:
    """O(log n): whatever lies off the path is poison, and would show in every sum that was taken over it."""
    tree = tree_of(np.ones(capacity))
    row = np.array([1234])
    path = {int(tree._leaves_at + row[0]) >> level for level in range(tree._depth + 1)}
    assert len(path) <= 1 + np.log2(tree._leaves_at)
    needed = path | {node ^ 1 for node in path}
    poisoned = [node for node in range(1, len(tree._nodes)) if node not in needed]
    tree._nodes[poisoned] = np.nan
    before = tree._nodes.copy()
    tree.set(row, np.array([5.0]))
    changed = np.flatnonzero(~((tree._nodes == before) | (np.isnan(tree._nodes) & np.isnan(before))))
    assert set(changed.tolist()) == path
    assert not np.isnan(tree._nodes[sorted(path)]).any()
