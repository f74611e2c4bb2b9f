"""Laws that generalised advantages and the clipped surrogate keep on any input."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from simic.numerics.gae import gae
from simic.numerics.ppo import clipped_surrogate
from simic.numerics.vtrace import vtrace

Case = dict[str, Tensor]


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """Rows [T, B] with sequence ends anywhere, some terminated and some truncated; float64."""
    shape = draw(st.integers(1, 30)), draw(st.integers(1, 5))
    generator = np.random.default_rng(draw(st.integers(0, 2**31)))
    is_cut = generator.random(shape) < draw(st.sampled_from([0.0, 0.1, 0.5]))
    terminated = is_cut & (generator.random(shape) < 0.5)
    values = generator.normal(size=shape)
    follows = np.concatenate([values[1:], generator.normal(size=(1, shape[1]))])
    is_cut[-1] = True
    columns = {
        "rewards": generator.normal(size=shape),
        "discounts": np.where(terminated, 0.0, draw(st.sampled_from([0.9, 1.0]))),
        "values": values,
        "next_values": np.where(is_cut, generator.normal(size=shape), follows),
        "is_cut": is_cut,
    }
    return {name: torch.from_numpy(column) for name, column in columns.items()}


@settings(max_examples=40, deadline=None)
@given(cases(), st.sampled_from([0.0, 0.5, 0.95, 1.0]))
def test_equal_to_v_trace_on_policy(case: Case, lambda_: float) -> None:
    """With ratio 1, vs - V of V-trace is the same sum (Espeholt et al. 2018, remark 1)."""
    zero = torch.zeros_like(case["rewards"])
    result = gae(**case, lambda_=lambda_)  # type: ignore[arg-type]
    on_policy = vtrace(**case, log_prob_target=zero, log_prob_behaviour=zero, lambda_=lambda_)  # type: ignore[arg-type]
    np.testing.assert_allclose(result.returns.numpy(), on_policy.vs.numpy(), rtol=1e-9, atol=1e-9)


@settings(max_examples=30, deadline=None)
@given(cases(), st.floats(-50.0, 50.0), st.sampled_from([0.3, 0.95]))
def test_a_shift_of_all_values_changes_no_advantage(case: Case, k: float, lambda_: float) -> None:
    shifted = {
        **case,
        "values": case["values"] + k,
        "next_values": case["next_values"] + k,
        "rewards": case["rewards"] + k * (1.0 - case["discounts"]),
    }
    plain, moved = (gae(**one, lambda_=lambda_) for one in (case, shifted))  # type: ignore[arg-type]
    np.testing.assert_allclose(moved.advantages.numpy(), plain.advantages.numpy(), rtol=1e-8, atol=1e-8)
    np.testing.assert_allclose(moved.returns.numpy(), plain.returns.numpy() + k, rtol=1e-8, atol=1e-8)


@settings(max_examples=20, deadline=None)
@given(cases())
def test_padding_has_advantage_0_and_changes_no_other_row(case: Case) -> None:
    steps = len(case["rewards"])
    padded = {name: torch.cat([column, torch.zeros_like(column[:1]).repeat(3, 1)]) for name, column in case.items()}
    padded["is_cut"][steps:] = True
    plain, longer = (gae(**one, lambda_=0.9) for one in (case, padded))  # type: ignore[arg-type]
    torch.testing.assert_close(longer.advantages[:steps], plain.advantages)
    assert not longer.advantages[steps:].any()


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**31), st.floats(0.05, 0.8), st.floats(2.0, 6.0))
def test_the_surrogate_is_a_lower_bound_and_irrelevant_heads_count_for_nothing(
    seed: int, clip: float, dual_clip: float
) -> None:
    """At most the unclipped gain but for the dual bound, exactly it at ratio 1, and no gradient where clipped."""
    draw = torch.Generator().manual_seed(seed)
    log_ratios = (2.0 * torch.randn(20, 3, generator=draw, dtype=torch.float64)).requires_grad_()
    gains, relevant = torch.randn(20, generator=draw, dtype=torch.float64), torch.rand(20, 3, generator=draw) < 0.6
    result = clipped_surrogate(log_ratios, gains, relevant, clip=clip, dual_clip=dual_clip)
    (gradient,) = torch.autograd.grad(result.objective.sum(), log_ratios)
    free = log_ratios.detach().exp() * gains[:, None]
    floor = torch.where(gains[:, None] < 0, dual_clip * gains[:, None], -torch.inf)
    assert (result.objective <= torch.maximum(free, floor) + 1e-9)[relevant].all()
    assert not result.objective[~relevant].any()
    assert not gradient[~relevant | result.is_clipped].any()
    assert torch.equal(gradient != 0, relevant & ~result.is_clipped)
    same = clipped_surrogate(torch.zeros_like(log_ratios), gains, relevant, clip=clip, dual_clip=dual_clip)
    assert torch.equal(same.objective, torch.where(relevant, gains[:, None], 0.0))
