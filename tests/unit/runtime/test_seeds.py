"""Named streams: stable for ever, apart from each other, no global state."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simic.runtime.seeds import derive, generator

NAMES = st.lists(st.text(max_size=8) | st.integers(-(2**70), 2**70), max_size=4)


def test_drl12_children_are_the_same_on_every_machine_and_in_every_release() -> None:
    assert derive(0) == 7_520_536_977_032_167_579
    assert derive(0, "train") == 8_574_274_194_801_238_655
    assert derive(7, "host", 3) == 7_987_711_956_187_531_099
    assert generator(7, "host", 3).integers(0, 1000, 4).tolist() == [749, 569, 823, 395]


@given(st.integers(0, 2**63 - 1), NAMES)
def test_a_child_is_a_63_bit_number(seed: int, names: list[str | int]) -> None:
    assert 0 <= derive(seed, *names) < 2**63


@given(st.integers(0, 1000), NAMES, NAMES)
def test_different_paths_lead_to_different_children(seed: int, one: list[str | int], other: list[str | int]) -> None:
    assert (derive(seed, *one) == derive(seed, *other)) == (one == other)


@pytest.mark.parametrize(
    ("one", "other"), [(("1",), (1,)), (("ab", "c"), ("a", "bc")), (("a",), ("a", "")), ((), (0,))]
)
def test_names_cannot_be_mistaken_for_each_other(one: tuple[str | int, ...], other: tuple[str | int, ...]) -> None:
    assert derive(0, *one) != derive(0, *other)


def test_numpy_integers_count_as_integers_and_floats_are_refused() -> None:
    assert derive(int(np.int64(3)), np.int32(5)) == derive(3, 5)  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        derive(0, 1.5)  # type: ignore[arg-type]


def test_a_generator_leaves_global_state_alone() -> None:
    before = random.getstate(), np.random.get_state()[1].tolist()  # noqa: NPY002 - looking at what must not change
    generator(1, "x").normal(size=100)
    assert (random.getstate(), np.random.get_state()[1].tolist()) == before  # noqa: NPY002


def test_sibling_streams_are_not_correlated() -> None:
    draws = np.stack([generator(0, "stream", index).normal(size=2000) for index in range(8)])
    correlations = np.corrcoef(draws) - np.eye(8)
    assert np.abs(correlations).max() < 0.1
