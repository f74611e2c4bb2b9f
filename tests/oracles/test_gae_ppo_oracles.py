"""Generalised advantages and the clipped surrogate against constants and literal sums. T time, B batch, A heads."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from simic.numerics.gae import Gae, gae
from simic.numerics.ppo import clipped_surrogate

REWARDS = [101.0, 102, 103, 200, 104, 105, 106, 201, 107, 108, 109, 202]
NEXT = [2.0, 3, 4, -1, 5, 6, 7, -2, 8, 9, 10, -3]
ENDS = (3, 7, 11)
LAST = [474.2876, 390.1027, 299.476, 202]


def column(values: list[float]) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)[:, None]


def three_episodes(terminated: tuple[int, ...]) -> Gae:
    following, is_cut = column(NEXT), torch.zeros(12, 1, dtype=torch.bool)
    is_cut[list(ENDS)] = True
    discounts = torch.full_like(following, 0.99)
    discounts[list(terminated)] = 0.0
    return gae(
        rewards=column(REWARDS),
        discounts=discounts,
        values=following.roll(1, 0),
        next_values=following,
        is_cut=is_cut,
        lambda_=0.95,
    )


@pytest.mark.parametrize(
    ("terminated", "expected"),
    [
        (ENDS, [454.8344, 376.1143, 291.298, 200, 464.561, 383.1085, 295.387, 201, *LAST]),
        ((11,), [454.0109, 375.2386, 290.3669, 199.01, 462.9138, 381.3571, 293.5248, 199.02, *LAST]),
    ],
    ids=["terminated", "two truncated"],
)
def test_three_episodes_in_a_row(terminated: tuple[int, ...], expected: list[float]) -> None:
    """Returns at a truncated end hold the value of its own final state, never that of the next episode."""
    result = three_episodes(terminated)
    np.testing.assert_allclose(result.returns[:, 0].numpy(), expected, atol=5e-5)
    values = np.roll(NEXT, 1)
    np.testing.assert_allclose(result.advantages[:, 0].numpy(), np.array(expected) - values, atol=5e-5)


def test_a_constant_critic_has_a_closed_form() -> None:
    """A_t = delta (1 - q^n) / (1 - q) + q^n (r - v) with q = gamma lambda and n steps before the terminal one."""
    length, reward, value, gamma, lambda_ = 30, 2.0, 7.0, 0.97, 0.9
    shape, q, delta = (length, 3), 0.97 * 0.9, 2.0 + 0.97 * 7.0 - 7.0
    discounts = torch.full(shape, gamma, dtype=torch.float64)
    discounts[-1] = 0.0
    constant = torch.full_like(discounts, value)
    result = gae(
        rewards=torch.full_like(discounts, reward),
        discounts=discounts,
        values=constant,
        next_values=constant,
        is_cut=discounts == 0,
        lambda_=lambda_,
    )
    left = np.arange(length - 1, -1, -1)
    expected = delta * (1 - q**left) / (1 - q) + q**left * (reward - value)
    np.testing.assert_allclose(result.advantages.numpy(), np.tile(expected[:, None], 3), rtol=1e-12)


@pytest.mark.parametrize(
    ("ratio", "advantage", "objective", "is_clipped"),
    [
        (1.0, 2.0, 2.0, False),
        (1.1, 2.0, 2.2, False),
        (1.5, 2.0, 2.4, True),
        (0.5, 2.0, 1.0, False),
        (0.9, -2.0, -1.8, False),
        (0.5, -2.0, -1.6, True),
        (2.5, -2.0, -5.0, False),
        (9.0, -2.0, -6.0, True),
        (9.0, 0.0, 0.0, False),
    ],
)
def test_the_surrogate_by_hand_at_clip_02_and_dual_clip_3(
    ratio: float, advantage: float, objective: float, is_clipped: bool
) -> None:
    log_ratios = torch.full((1, 2), math.log(ratio), dtype=torch.float64, requires_grad=True)
    relevant = torch.tensor([[True, False]])
    gains = torch.tensor([advantage], dtype=torch.float64)
    result = clipped_surrogate(log_ratios, gains, relevant, clip=0.2, dual_clip=3.0)
    assert result.objective[0].tolist() == pytest.approx([objective, 0.0])
    assert result.is_clipped.tolist() == [[is_clipped, False]]
    result.objective.sum().backward()
    assert log_ratios.grad is not None
    assert log_ratios.grad[0].tolist() == pytest.approx([0.0 if is_clipped else ratio * advantage, 0.0])


def test_simic001_a_ratio_far_away_is_finite() -> None:
    log_ratios = torch.tensor([[50.0], [-50.0], [200.0]], requires_grad=True)
    relevant = torch.ones(3, 1, dtype=torch.bool)
    result = clipped_surrogate(log_ratios, torch.tensor([1.0, -1.0, -1.0]), relevant, clip=0.2, dual_clip=3.0)
    result.objective.sum().backward()
    assert torch.isfinite(result.objective).all()
    assert log_ratios.grad is not None
    assert torch.isfinite(log_ratios.grad).all()
    assert result.is_clipped.all()


@pytest.mark.parametrize("wrong", [{"clip": 0.0}, {"clip": 1.0}, {"dual_clip": 1.1}, {"clip": math.nan}])
def test_bounds_of_the_surrogate_are_checked(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="expected clip"):
        clipped_surrogate(
            torch.zeros(1, 1),
            torch.zeros(1),
            torch.ones(1, 1, dtype=torch.bool),
            **{"clip": 0.2, "dual_clip": 3.0, **wrong},
        )


def test_wrong_shapes_are_told() -> None:
    with pytest.raises(ValueError, match=r"found \(2, 3\), \(3,\)"):
        clipped_surrogate(
            torch.zeros(2, 3), torch.zeros(3), torch.ones(2, 3, dtype=torch.bool), clip=0.2, dual_clip=3.0
        )
    good = dict.fromkeys(("rewards", "discounts", "values", "next_values"), torch.zeros(3, 2))
    for name, value in (("values", torch.zeros(2, 3)), ("is_cut", torch.zeros(3, 2)), ("lambda_", 1.5)):
        case = {**good, "is_cut": torch.zeros(3, 2, dtype=torch.bool), "lambda_": 0.9, name: value}
        with pytest.raises(ValueError, match=name):
            gae(**case)  # type: ignore[arg-type]
