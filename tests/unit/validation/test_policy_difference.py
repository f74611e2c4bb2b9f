"""The distance of two distributions over actions, and what the page makes of names."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from support.builders.policy_differences import difference

from simic.contracts.actions import HEADS, Head
from simic.controllers.logged_states import TargetActions
from simic.validation.difference_page import draw, write_page
from simic.validation.policy_difference import PLACE, distance

WAIT = [0, -1, -1, -1, -1, -1, -1]
NORM, GATE, ELSEWHERE = [1, 0, 2, -1, -1, -1, 0], [1, 0, 3, -1, -1, -1, 0], [1, 1, 2, -1, -1, -1, 0]
LATER = [1, 0, 2, -1, -1, -1, 1]


def acting(*pairs: tuple[float, list[int]]) -> TargetActions:
    shares = np.array([[share for share, _ in pairs]])
    return TargetActions(np.zeros(1), np.array([[action for _, action in pairs]]), shares)


@pytest.mark.parametrize(
    ("first", "second", "by_op", "by_place", "by_action"),
    [
        (acting((1.0, WAIT)), acting((1.0, WAIT)), 0.0, 0.0, 0.0),
        (acting((1.0, WAIT)), acting((1.0, NORM)), 1.0, 1.0, 1.0),
        (acting((0.7, WAIT), (0.3, NORM)), acting((0.4, WAIT), (0.6, NORM)), 0.3, 0.3, 0.3),
        (acting((0.7, WAIT), (0.3, NORM)), acting((0.4, WAIT), (0.6, GATE)), 0.3, 0.6, 0.6),
        (acting((0.5, NORM), (0.5, ELSEWHERE)), acting((1.0, NORM)), 0.0, 0.5, 0.5),
        (acting((1.0, NORM)), acting((1.0, LATER)), 0.0, 0.0, 1.0),
        (acting((0.5, NORM), (0.5, NORM)), acting((1.0, NORM)), 0.0, 0.0, 0.0),
        (acting((0.25, NORM), (0.25, NORM), (0.5, WAIT)), acting((0.5, GATE), (0.5, WAIT)), 0.0, 0.5, 0.5),
    ],
)
def test_the_distance_is_what_no_coupling_can_avoid(
    first: TargetActions, second: TargetActions, by_op: float, by_place: float, by_action: float
) -> None:
    found = [distance(first, second, heads)[0] for heads in ((Head.OP,), PLACE, HEADS)]
    assert found == pytest.approx([by_op, by_place, by_action])


def total_variation(first: TargetActions, second: TargetActions) -> float:
    """The definition: half the sum over all actions of the differences."""
    tables = [
        {action: sum(float(share) for other, share in rows if other == action) for action, _ in rows}
        for rows in ([(tuple(a.tolist()), s) for a, s in zip(one.candidates[0], one.shares[0], strict=True)]
                     for one in (first, second))
    ]  # fmt: skip
    return 0.5 * sum(abs(tables[0].get(key, 0.0) - tables[1].get(key, 0.0)) for key in {*tables[0], *tables[1]})


@st.composite
def actings(draw: st.DrawFn) -> TargetActions:
    count = draw(st.integers(1, 5))
    actions: NDArray[np.int64] = np.array(draw(st.lists(st.sampled_from([WAIT, NORM, GATE, ELSEWHERE, LATER]),
                                                        min_size=count, max_size=count)))  # fmt: skip
    weights = np.array(draw(st.lists(st.floats(0.01, 1.0), min_size=count, max_size=count)))
    return TargetActions(np.zeros(1), actions[None], (weights / weights.sum())[None])


@given(actings(), actings(), actings())
def test_the_distance_is_a_metric_that_grows_with_what_is_told_apart(
    one: TargetActions, two: TargetActions, three: TargetActions
) -> None:
    assert distance(one, two)[0] == pytest.approx(total_variation(one, two), abs=1e-9)
    assert distance(one, one)[0] == pytest.approx(0.0, abs=1e-9)
    assert distance(one, two)[0] == pytest.approx(distance(two, one)[0], abs=1e-12)
    assert distance(one, three)[0] <= distance(one, two)[0] + distance(two, three)[0] + 1e-9
    nested = [distance(one, two, heads)[0] for heads in ((Head.OP,), PLACE, HEADS)]
    assert min(np.diff(nested)) > -1e-9


def test_names_cannot_become_html(tmp_path: Path) -> None:
    hostile = "<script>alert(1)</script>"
    found = difference(first=hostile, second='a"b', family=hostile)
    text = write_page(found, [], draw(found, []), tmp_path / "page.html").read_text()
    assert "<script" not in text
    assert text.count("&lt;script&gt;") >= 4
    assert write_page(found, [], draw(found, []), tmp_path / "again.html").read_text() == text
