"""V-trace against constants, against the paper's own sum, and at truncations. T time, B batch."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from simic.numerics.vtrace import VTrace, vtrace

Array = NDArray[np.float64]


def test_oracle_a_the_five_by_five_case() -> None:
    """T = B = 5; the classic case of other implementations' tests, as constants."""
    grid = torch.arange(25.0, dtype=torch.float64).reshape(5, 5)
    log_rhos = 5.0 * (grid / 25.0 - 0.5)
    discounts = (0.9 / torch.arange(1.0, 6.0, dtype=torch.float64)).expand(5, 5).contiguous()
    values = grid / 5.0
    bootstrap = torch.arange(1.0, 6.0, dtype=torch.float64)
    result = vtrace(
        log_prob_target=log_rhos,
        log_prob_behaviour=torch.zeros_like(log_rhos),
        rewards=grid,
        discounts=discounts,
        values=values,
        next_values=torch.cat([values[1:], bootstrap[None]]),
        is_cut=torch.zeros(5, 5, dtype=torch.bool),
        rho_bar=3.7,
        c_bar=1.0,
        pg_rho_bar=2.2,
    )
    expected = {
        "vs[0]": (result.vs[0], [0.929815, 0.556437, 0.816895, 1.189767, 1.654995]),
        "vs[4]": (result.vs[4], [66.53, 69.69, 72.85, 76.01, 79.17]),
        "pg[3]": (result.pg_advantages[3], [118.50515, 88.928319, 78.001002, 69.304949, 64.791321]),
        "pg[4]": (result.pg_advantages[4], [37.18, 38.94, 40.70, 42.46, 44.22]),
    }
    for name, (found, figures) in expected.items():
        np.testing.assert_allclose(found.numpy(), figures, rtol=2e-6, err_msg=name)


def literal(
    case: dict[str, Array], rho_bar: float, c_bar: float, pg_rho_bar: float, lambda_: float
) -> tuple[Array, Array]:
    """The paper's definition as a sum of products over every later step of the same sequence, float64."""
    ratio = np.exp(case["log_prob_target"] - case["log_prob_behaviour"])
    rho, c = np.minimum(rho_bar, ratio), lambda_ * np.minimum(c_bar, ratio)
    r, d, v, v_next, cut = (case[k] for k in ("rewards", "discounts", "values", "next_values", "is_cut"))
    steps, batch = r.shape
    vs, advantages = np.empty_like(v), np.empty_like(v)
    for b in range(batch):
        for s in range(steps):
            total, weight = v[s, b], 1.0
            for t in range(s, steps):
                total += weight * rho[t, b] * (r[t, b] + d[t, b] * v_next[t, b] - v[t, b])
                if cut[t, b]:
                    break
                weight *= d[t, b] * c[t, b]
            vs[s, b] = total
        for s in range(steps):
            after = v_next[s, b] if cut[s, b] or s == steps - 1 else vs[s + 1, b]
            advantages[s, b] = min(pg_rho_bar, ratio[s, b]) * (r[s, b] + d[s, b] * after - v[s, b])
    return vs, advantages


def random_case(seed: int, steps: int, batch: int, spread: float = 0.7) -> dict[str, Array]:
    """Sequences that end anywhere, half of them terminated, half truncated."""
    generator = np.random.default_rng(seed)
    shape = (steps, batch)
    is_cut = generator.random(shape) < 0.1
    is_cut[-1] = generator.random(batch) < 0.5
    terminated = is_cut & (generator.random(shape) < 0.5)
    values = generator.normal(size=shape)
    follows = np.concatenate([values[1:], generator.normal(size=(1, batch))])
    return {
        "log_prob_target": generator.normal(scale=spread, size=shape),
        "log_prob_behaviour": generator.normal(scale=spread, size=shape),
        "rewards": generator.normal(size=shape),
        "discounts": np.where(terminated, 0.0, 0.97),
        "values": values,
        "next_values": np.where(is_cut, generator.normal(size=shape), follows),
        "is_cut": is_cut,
    }


def run(case: dict[str, Array], dtype: torch.dtype = torch.float64, **bounds: float) -> VTrace:
    tensors: dict[str, Tensor] = {
        name: torch.from_numpy(column) if column.dtype == bool else torch.from_numpy(column).to(dtype)
        for name, column in case.items()
    }
    return vtrace(**tensors, **bounds)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("steps", "batch"), [(1, 1), (1, 7), (2, 3), (3, 1), (20, 32), (63, 5), (64, 4), (65, 3), (200, 2), (17, 64)]
)
@pytest.mark.parametrize(
    "bounds", [(1.0, 1.0, 1.0, 1.0), (2.5, 1.3, 0.4, 0.9), (0.0, 0.5, 1.0, 0.0)], ids=["ones", "mixed", "zeros"]
)
def test_oracle_b_the_literal_sum(steps: int, batch: int, bounds: tuple[float, float, float, float]) -> None:
    names = ("rho_bar", "c_bar", "pg_rho_bar", "lambda_")
    for seed in range(2):
        case = random_case(seed, steps, batch)
        vs, advantages = literal(case, *bounds)
        result = run(case, **dict(zip(names, bounds, strict=True)))
        np.testing.assert_allclose(result.vs.numpy(), vs, rtol=1e-10, atol=1e-10)
        np.testing.assert_allclose(result.pg_advantages.numpy(), advantages, rtol=1e-10, atol=1e-10)


def test_oracle_b_in_single_precision() -> None:
    case = random_case(5, 150, 32, spread=0.3)
    vs, advantages = literal(case, 1.0, 1.0, 1.0, 1.0)
    result = run(case, torch.float32)
    assert result.vs.dtype == torch.float32
    np.testing.assert_allclose(result.vs.numpy(), vs, rtol=2e-5, atol=2e-5)
    np.testing.assert_allclose(result.pg_advantages.numpy(), advantages, rtol=2e-5, atol=2e-5)


def test_wide_truncation_over_a_long_sequence_stays_exact() -> None:
    """c_bar 4 over 150 quiet steps before a cut: 3.9^150 leaves float32, and times nothing it must stay nothing."""
    case = random_case(6, 200, 2)
    case["log_prob_target"][:] = 1.5
    case["log_prob_behaviour"][:] = 0.0
    case["is_cut"][:] = False
    case["is_cut"][150] = True
    case["discounts"][:] = 0.97
    for name in ("rewards", "values", "next_values"):
        case[name][20:190] = 0.0
    vs, _ = literal(case, 1.0, 4.0, 1.0, 1.0)
    result = run(case, torch.float32, c_bar=4.0)
    assert torch.isfinite(result.vs).all()
    np.testing.assert_allclose(result.vs.numpy(), vs, rtol=1e-4, atol=1e-6)


def test_oracle_c_med7_truncation_bootstraps_from_its_own_final_state() -> None:
    """A (2 steps, V = 1, truncated) before B (V = 100): the advantage at the cut is 0, not 99."""
    one = torch.zeros(4, 1)
    result = vtrace(
        log_prob_target=one,
        log_prob_behaviour=one,
        rewards=one,
        discounts=torch.ones(4, 1),
        values=torch.tensor([[1.0], [1.0], [100.0], [100.0]]),
        next_values=torch.tensor([[1.0], [1.0], [100.0], [100.0]]),
        is_cut=torch.tensor([[False], [True], [False], [True]]),
    )
    assert result.pg_advantages.flatten().tolist() == [0.0, 0.0, 0.0, 0.0]
    assert result.vs.flatten().tolist() == [1.0, 1.0, 100.0, 100.0]


def test_d5_concatenation_gives_the_concatenation_of_results() -> None:
    parts = [random_case(seed, steps, 3) for seed, steps in enumerate((1, 4, 9, 2))]
    for part in parts:
        part["is_cut"][-1] = True
    whole = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    results = [run(part, rho_bar=1.5, lambda_=0.95) for part in parts]
    result = run(whole, rho_bar=1.5, lambda_=0.95)
    for field in ("vs", "pg_advantages"):
        joined = torch.cat([getattr(r, field) for r in results])
        np.testing.assert_allclose(getattr(result, field).numpy(), joined.numpy(), rtol=1e-12, atol=1e-12)


def test_d3_bootstrap_is_the_successors_value_in_a_two_state_process() -> None:
    """Values solve V = r + gamma V' exactly, so on-policy every advantage is 0 and vs equals V."""
    gamma, v_b = 0.9, 5.0 / (1.0 - 0.9 * 0.9)
    v_a = gamma * v_b
    values = torch.tensor([[v_a], [v_b], [v_a]], dtype=torch.float64)
    zero = torch.zeros_like(values)
    result = vtrace(
        log_prob_target=zero,
        log_prob_behaviour=zero,
        rewards=torch.tensor([[0.0], [5.0], [0.0]], dtype=torch.float64),
        discounts=torch.full_like(values, gamma),
        values=values,
        next_values=torch.tensor([[v_b], [v_a], [v_b]], dtype=torch.float64),
        is_cut=torch.tensor([[False], [False], [True]]),
    )
    np.testing.assert_allclose(result.vs.numpy(), values.numpy(), rtol=1e-12)
    np.testing.assert_allclose(result.pg_advantages.numpy(), 0.0, atol=1e-12)


def test_d9_policy_gradient_advantage_uses_the_next_target_and_its_own_bound() -> None:
    zero = torch.zeros(2, 1, dtype=torch.float64)
    result = vtrace(
        log_prob_target=torch.full_like(zero, np.log(3.0)),
        log_prob_behaviour=zero,
        rewards=torch.tensor([[1.0], [10.0]], dtype=torch.float64),
        discounts=torch.tensor([[0.5], [0.0]], dtype=torch.float64),
        values=torch.tensor([[2.0], [4.0]], dtype=torch.float64),
        next_values=torch.tensor([[4.0], [7.0]], dtype=torch.float64),
        is_cut=torch.tensor([[False], [True]]),
        rho_bar=1.0,
        c_bar=1.0,
        pg_rho_bar=2.0,
    )
    # vs_1 = 4 + (10 - 4) = 10; adv_0 = 2 (1 + .5 * 10 - 2) = 8; adv_1 = 2 (10 - 4) = 12; vs_0 = 2 + 1 + .5 * 6 = 6.
    np.testing.assert_allclose(result.pg_advantages.flatten().numpy(), [8.0, 12.0])
    np.testing.assert_allclose(result.vs.flatten().numpy(), [6.0, 10.0])
