"""Reward family ``basic``: the accounting that trials and curation share."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from simic.contracts.rewards import FAMILIES, RewardConfig
from simic.numerics.rewards import basic_return, basic_rewards

PRICES = RewardConfig(accuracy_scale=100.0, rent=3.0, rent_parameters=1640, governor_penalty=10.0)
HORIZON = 20
NOTHING = {"accuracy_before": [0.5], "accuracy_after": [0.5], "rent_parameters": [0], "governor": [False]}


def test_each_term_by_hand() -> None:
    rewards = basic_rewards(
        PRICES,
        horizon=HORIZON,
        accuracy_before=[0.50, 0.50, 0.50],
        accuracy_after=[0.53, 0.50, 0.40],
        rent_parameters=[0, 1640, 820],
        governor=[False, False, True],
    )
    np.testing.assert_allclose(rewards, [3.0, -0.15, -10.0 - 0.075 - 10.0], rtol=0, atol=1e-12)
    assert rewards.dtype == np.float64


def test_l10_l20_the_undiscounted_return_telescopes() -> None:
    """Return = scale (A_T - A_0) - rents - penalties, whatever happened in between."""
    generator = np.random.default_rng(3)
    accuracy = generator.random((21, 7))
    parameters = generator.integers(0, 2000, (20, 7))
    rewards = basic_rewards(
        PRICES,
        horizon=HORIZON,
        accuracy_before=accuracy[:-1],
        accuracy_after=accuracy[1:],
        rent_parameters=parameters,
        governor=np.zeros((20, 7), dtype=bool),
    )
    expected = 100.0 * (accuracy[-1] - accuracy[0]) - 3.0 * parameters.sum(axis=0) / 1640.0 / 20
    np.testing.assert_allclose(basic_return(rewards), expected, rtol=0, atol=1e-10)


SHARE = st.floats(0, 1)


@given(before=SHARE, after=SHARE, parameters=st.integers(0, 3 * 1640), panic=st.booleans())
def test_m3_every_term_stays_within_its_declared_range(
    before: float, after: float, parameters: int, panic: bool
) -> None:
    """Progress within +- scale, rent within the budget's share of an epoch, the penalty all or nothing; no clamp."""
    alone = [
        basic_rewards(PRICES, horizon=HORIZON, **{**NOTHING, **given})[0]
        for given in (
            {"accuracy_before": [before], "accuracy_after": [after]},
            {"rent_parameters": [parameters]},
            {"governor": [panic]},
        )
    ]
    assert -100 <= alone[0] <= 100
    assert -3.0 * 3 / 20 <= alone[1] <= 0
    assert alone[2] in (0.0, -10.0)
    together = basic_rewards(
        PRICES,
        horizon=HORIZON,
        accuracy_before=[before],
        accuracy_after=[after],
        rent_parameters=[parameters],
        governor=[panic],
    )
    assert together[0] == pytest.approx(sum(alone), abs=1e-9)


def test_discounted_return() -> None:
    np.testing.assert_allclose(basic_return([[1.0], [2.0], [4.0]], discount=0.5), [1.0 + 1.0 + 1.0])


def test_an_unmeasured_accuracy_has_no_reward() -> None:
    with pytest.raises(ValueError, match="finite"):
        basic_rewards(PRICES, horizon=HORIZON, **{**NOTHING, "accuracy_after": [np.nan]})


DIVISORS = ("rent_parameters", "contribution_full")


@pytest.mark.parametrize(("family", "name"), [
    (family, name) for family, model in FAMILIES.items() for name in DIVISORS if name in model.model_fields
])  # fmt: skip
@pytest.mark.parametrize("value", [0, -0.0, -1, float("nan")])
def test_c2_a_divisor_that_is_not_positive_is_no_configuration(family: str, name: str, value: float) -> None:
    with pytest.raises(ValidationError):
        FAMILIES[family](**{name: value})


@given(st.integers(min_value=1), st.integers(1, 1000), st.floats(5e-324, 1e4), st.integers(0, 10**9))
def test_c2_with_every_divisor_that_is_allowed_rewards_are_finite(
    parameters_scale: int, horizon: int, scale: float, parameters: int
) -> None:
    rewards = basic_rewards(
        RewardConfig(rent_parameters=parameters_scale, accuracy_scale=scale),
        horizon=horizon,
        accuracy_before=[0.0, 1.0],
        accuracy_after=[1.0, 0.0],
        rent_parameters=[parameters, 0],
        governor=[False, True],
    )
    assert np.isfinite(rewards).all()


@pytest.mark.parametrize(("parameters", "horizon"), [(0, HORIZON), (-0.0, HORIZON), (1640, 0)])
def test_c2_a_ratio_to_zero_is_refused_and_not_guessed(parameters: float, horizon: int) -> None:
    prices = RewardConfig.model_construct(rent_parameters=parameters)
    with pytest.raises(ValueError, match="must be positive"):
        basic_rewards(prices, horizon=horizon, **NOTHING)
