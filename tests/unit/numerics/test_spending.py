"""The levels of judgements: their closed form, and the sum that a home can never exceed."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import zeta

from simic.numerics.spending import level

BUDGET = 0.025


def test_levels_of_a_worked_example() -> None:
    # zeta(1.5) = 2.612375...; 1, 4 and 9 have the powers 1, 8 and 27
    assert [level(k, BUDGET) for k in (1, 4, 9)] == pytest.approx([BUDGET / 2.6123753 / n for n in (1, 8, 27)])
    assert [level(k, BUDGET) for k in range(1, 50)] == [BUDGET * (1.0 / (k**1.5 * zeta(1.5))) for k in range(1, 50)]


def test_all_levels_sum_up_to_the_budget() -> None:
    last = 20_000
    known = math.fsum(level(k, BUDGET) for k in range(1, last + 1))
    assert known + 2.0 / math.sqrt(last) * BUDGET / 2.6123753 == pytest.approx(BUDGET, rel=1e-4)  # tail as an integral


@given(st.lists(st.booleans(), max_size=80), st.floats(1e-6, 0.49))
def test_whatever_is_accepted_the_levels_of_the_rejected_stay_within_the_budget(
    accepted: list[bool], budget: float
) -> None:
    spent = carried = 0.0
    for ordinal, is_accepted in enumerate(accepted, 1):
        alpha = level(ordinal, budget, carried)
        assert 0.0 < alpha <= budget
        carried = alpha if is_accepted else 0.0
        spent += 0.0 if is_accepted else alpha
    assert spent <= budget * (1.0 + 1e-12)


@pytest.mark.parametrize(
    ("ordinal", "budget", "carried"), [(0, 0.02, 0.0), (1, 0.0, 0.0), (1, 0.5, 0.0), (1, 0.02, 0.03), (1, 0.02, -0.1)]
)
def test_what_is_no_judgement_is_refused(ordinal: int, budget: float, carried: float) -> None:
    with pytest.raises(ValueError, match="budget"):
        level(ordinal, budget, carried)
