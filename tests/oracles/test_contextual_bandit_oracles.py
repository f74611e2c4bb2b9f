"""The doubly robust value of a contextual bandit against literal sums. B contexts, K actions."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from simic.numerics.contextual_bandit import doubly_robust_value


@pytest.mark.parametrize("seed", range(10))
def test_over_actions_of_the_behaviour_its_mean_is_the_value_whatever_is_predicted(seed: int) -> None:
    """Dudik et al. 2014, section 3: with the true propensities the prediction cancels."""
    draw = np.random.default_rng(seed)
    target, behaviour = draw.dirichlet(np.ones(4)), draw.dirichlet(np.ones(4)) * 0.9 + 0.025
    truth, predicted = draw.normal(size=4) * 3, draw.normal(size=4) * 3
    each = doubly_robust_value(
        torch.tensor(target).log().expand(4, 4), torch.arange(4), torch.tensor(behaviour).log(), torch.tensor(truth),
        torch.tensor(predicted).expand(4, 4), max_weight=1e6,
    )  # fmt: skip
    mean = sum(behaviour[action] * float(each[action]) for action in range(4))
    assert mean == pytest.approx(sum(target[action] * truth[action] for action in range(4)), abs=1e-9)


@pytest.mark.parametrize("seed", range(5))
def test_it_is_the_sum_of_the_definition_row_by_row(seed: int) -> None:
    draw = np.random.default_rng(seed)
    target, behaviour = draw.dirichlet(np.ones(5), 40), draw.uniform(0.001, 1.0, 40)
    taken, returns, predicted = draw.integers(0, 5, 40), draw.normal(size=40), draw.normal(size=(40, 5))
    found = doubly_robust_value(
        torch.tensor(target).log(), torch.tensor(taken), torch.tensor(behaviour).log(), torch.tensor(returns),
        torch.tensor(predicted), max_weight=3.0,
    )  # fmt: skip
    ratios = [target[row, taken[row]] / behaviour[row] for row in range(40)]
    assert max(ratios) > 3.0 > min(ratios)
    for row in range(40):
        direct = sum(target[row, action] * predicted[row, action] for action in range(5))
        expected = direct + min(ratios[row], 3.0) * (returns[row] - predicted[row, taken[row]])
        assert float(found[row]) == pytest.approx(expected, abs=1e-12)


def test_a_weight_at_the_bound_has_no_gradient_and_the_most_improbable_action_overflows_nothing() -> None:
    logits = torch.zeros(1, 2, requires_grad=True)
    value = doubly_robust_value(
        logits.log_softmax(1), torch.tensor([0]), torch.tensor([-500.0]), torch.tensor([2.0]), torch.zeros(1, 2), 5.0
    )
    assert float(value.detach()) == pytest.approx(10.0)
    value.sum().backward()
    assert logits.grad is not None and logits.grad.tolist() == [[0.0, 0.0]]


def test_no_context_has_no_value() -> None:
    empty = torch.zeros(0)
    assert doubly_robust_value(torch.zeros(0, 3), empty.long(), empty, empty, torch.zeros(0, 3), 5.0).shape == (0,)


def test_other_shapes_and_a_bound_of_zero_are_refused() -> None:
    table, ones = torch.zeros(2, 3), torch.ones(2)
    with pytest.raises(ValueError, match="predicted"):
        doubly_robust_value(table, torch.zeros(2, dtype=torch.int64), ones, ones, torch.zeros(2, 4), 5.0)
    with pytest.raises(ValueError, match="taken"):
        doubly_robust_value(table, torch.zeros(3, dtype=torch.int64), ones, ones, table, 5.0)
    with pytest.raises(ValueError, match="max_weight must be a number above 0, found nan"):
        doubly_robust_value(table, torch.zeros(2, dtype=torch.int64), ones, ones, table, math.nan)
