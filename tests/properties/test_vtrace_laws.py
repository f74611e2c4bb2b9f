"""Laws that V-trace keeps on any input."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from simic.numerics.importance import LOG_RATIO_LIMIT
from simic.numerics.vtrace import VTrace, vtrace

Case = dict[str, Tensor]


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """Rows [T, B] with sequence ends anywhere; float64."""
    steps, batch = draw(st.integers(1, 40)), draw(st.integers(1, 6))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))

    def normal() -> Tensor:
        return torch.randn(steps, batch, generator=generator, dtype=torch.float64)

    is_cut = torch.rand(steps, batch, generator=generator) < draw(st.sampled_from([0.0, 0.1, 0.5]))
    terminated = is_cut & (torch.rand(steps, batch, generator=generator) < 0.5)
    values, elsewhere = normal(), normal()
    is_last = torch.arange(steps)[:, None] == steps - 1
    follows = torch.cat([values[1:], elsewhere[:1]])
    return {
        "log_prob_target": normal(),
        "log_prob_behaviour": normal(),
        "rewards": normal(),
        "discounts": torch.where(terminated, 0.0, draw(st.sampled_from([0.9, 0.99, 1.0]))).double(),
        "values": values,
        "next_values": torch.where(is_cut | is_last, elsewhere, follows),
        "is_cut": is_cut,
    }


def run(case: Case, **changes: Any) -> VTrace:
    return vtrace(**{**case, **changes})


@settings(max_examples=60, deadline=None)
@given(cases())
def test_pd1_on_policy_equals_the_n_step_return(case: Case) -> None:
    """Ratio 1 and clips >= 1: vs is the return to the sequence's end plus the value of its final state."""
    result = run(case, log_prob_target=case["log_prob_behaviour"], rho_bar=1.0, c_bar=2.0)
    after = torch.zeros_like(case["values"][0])
    for t in reversed(range(len(case["values"]))):
        is_end = case["is_cut"][t] if t + 1 < len(case["values"]) else torch.ones_like(case["is_cut"][t])
        after = case["rewards"][t] + case["discounts"][t] * torch.where(is_end, case["next_values"][t], after)
        np.testing.assert_allclose(result.vs[t].numpy(), after.numpy(), rtol=1e-9, atol=1e-9)


@settings(max_examples=30, deadline=None)
@given(cases())
def test_d7_zero_bounds_are_accepted_and_give_the_values(case: Case) -> None:
    result = run(case, rho_bar=0.0, c_bar=0.0)
    assert torch.equal(result.vs, case["values"])


@settings(max_examples=30, deadline=None)
@given(cases(), st.floats(-2.0, 2.0), st.floats(-2.0, 2.0))
def test_affine_in_values_and_rewards(case: Case, first: float, second: float) -> None:
    """For fixed ratios vs(a x + b y) = a vs(x) + b vs(y): there is no constant term at all."""
    other = {name: case[name].flip(1).cos() for name in ("rewards", "values", "next_values")}
    mixed = {name: first * case[name] + second * other[name] for name in other}
    expected = first * run(case).vs + second * run(case, **other).vs
    np.testing.assert_allclose(run(case, **mixed).vs.numpy(), expected.numpy(), rtol=1e-8, atol=1e-8)


@settings(max_examples=30, deadline=None)
@given(cases(), st.floats(-50.0, 50.0))
def test_shift(case: Case, k: float) -> None:
    """Adding k to every value and k (1 - d_t) to r_t adds k to vs and nothing to the advantage."""
    shifted = run(
        case,
        values=case["values"] + k,
        next_values=case["next_values"] + k,
        rewards=case["rewards"] + k * (1.0 - case["discounts"]),
    )
    plain = run(case)
    np.testing.assert_allclose(shifted.vs.numpy(), plain.vs.numpy() + k, rtol=1e-8, atol=1e-7)
    np.testing.assert_allclose(shifted.pg_advantages.numpy(), plain.pg_advantages.numpy(), rtol=1e-8, atol=1e-7)


@settings(max_examples=20, deadline=None)
@given(cases())
def test_columns_are_independent(case: Case) -> None:
    whole = run(case)
    for b in range(case["values"].shape[1]):
        alone = run({name: column[:, b : b + 1].contiguous() for name, column in case.items()})
        np.testing.assert_allclose(whole.vs[:, b].numpy(), alone.vs[:, 0].numpy(), rtol=1e-12, atol=1e-12)


def test_d8_no_gradient_leaves_the_targets() -> None:
    values = torch.zeros(3, 2, requires_grad=True)
    target = torch.zeros(3, 2, requires_grad=True)
    zero = torch.zeros(3, 2)
    result = vtrace(
        log_prob_target=target,
        log_prob_behaviour=zero,
        rewards=zero,
        discounts=zero,
        values=values,
        next_values=values,
        is_cut=torch.zeros(3, 2, dtype=torch.bool),
    )
    assert not result.vs.requires_grad
    assert not result.pg_advantages.requires_grad


def test_inputs_are_left_alone() -> None:
    generator = torch.Generator().manual_seed(0)
    case: Case = {
        name: torch.randn(5, 3, generator=generator)
        for name in ("log_prob_target", "log_prob_behaviour", "rewards", "discounts", "values", "next_values")
    }
    case["is_cut"] = torch.zeros(5, 3, dtype=torch.bool)
    before = {name: column.clone() for name, column in case.items()}
    run(case)
    assert all(torch.equal(case[name], before[name]) for name in case)


@pytest.mark.parametrize("target", [0.0, -100.0])
def test_simic001_far_off_policy_stays_finite_and_is_counted(target: float) -> None:
    """Behaviour log-prob -50 against target 0, and the reverse: finite, clamped, counted."""
    zero = torch.zeros(4, 2)
    behaviour = torch.full((4, 2), -50.0)
    behaviour[0] = target
    result = vtrace(
        log_prob_target=torch.full((4, 2), target),
        log_prob_behaviour=behaviour,
        rewards=zero + 1.0,
        discounts=zero + 0.99,
        values=zero,
        next_values=zero,
        is_cut=torch.zeros(4, 2, dtype=torch.bool),
        rho_bar=float("inf"),
        c_bar=1.0,
        pg_rho_bar=float("inf"),
    )
    assert torch.isfinite(result.vs).all()
    assert torch.isfinite(result.pg_advantages).all()
    assert result.clamp_count.item() == 6
    expected = np.exp(LOG_RATIO_LIMIT if target == 0.0 else -LOG_RATIO_LIMIT)
    np.testing.assert_allclose(result.ratios[1:].numpy(), expected, rtol=1e-6)
    np.testing.assert_allclose(result.ratios[0].numpy(), 1.0)


def _valid() -> Case:
    zero = torch.zeros(3, 2)
    names = ("log_prob_target", "log_prob_behaviour", "rewards", "discounts", "values", "next_values")
    return {**{name: zero.clone() for name in names}, "is_cut": torch.zeros(3, 2, dtype=torch.bool)}


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("values", torch.zeros(4, 2)),
        ("next_values", torch.zeros(2)),
        ("discounts", torch.zeros(3, 2, dtype=torch.float64)),
        ("log_prob_target", torch.zeros(3, 2, 1)),
        ("is_cut", torch.zeros(3, 2)),
        ("is_cut", torch.zeros(2, 3, dtype=torch.bool)),
        ("rewards", torch.zeros(0, 2)),
        ("rewards", torch.zeros(3, 2, dtype=torch.int64)),
    ],
)
def test_d4_wrong_shapes_and_dtypes_are_told_by_name(name: str, wrong: Tensor) -> None:
    with pytest.raises(ValueError, match=r"expected"):
        run(_valid(), **{name: wrong})


@pytest.mark.parametrize(
    ("template", "message"),
    [
        (torch.zeros(3), r"expected \[T, B\]"),
        (torch.zeros(0, 2), r"T, B >= 1"),
        (torch.zeros(3, 2, dtype=torch.int64), "floating dtype"),
    ],
)
def test_d4_consistent_but_meaningless_inputs_are_refused(template: Tensor, message: str) -> None:
    case = dict.fromkeys(_valid(), template) | {"is_cut": torch.zeros_like(template, dtype=torch.bool)}
    with pytest.raises(ValueError, match=message):
        run(case)


@pytest.mark.parametrize("bound", [{"rho_bar": -1.0}, {"c_bar": float("nan")}, {"lambda_": 1.5}, {"pg_rho_bar": -0.1}])
def test_bounds_are_checked(bound: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=next(iter(bound))):
        run(_valid(), **bound)
