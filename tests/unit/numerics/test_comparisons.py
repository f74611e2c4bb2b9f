"""Statistics of comparisons against scipy, a worked example and their laws."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from simic.numerics.comparisons import (
    holm,
    mann_whitney_p,
    minimum_detectable_effect,
    probability_of_improvement,
    sign_flip_p,
)

RETURNS = st.lists(st.integers(-50, 50).map(float), min_size=1, max_size=12)
SHARES = st.lists(st.floats(0.0, 1.0), min_size=1, max_size=8)


def test_holm_of_a_worked_example() -> None:
    # sorted 0.005, 0.01, 0.03, 0.04 times 4, 3, 2, 1: 0.02, 0.03, 0.06, 0.04, and the last may not fall below 0.06
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])


@given(SHARES)
def test_holm_is_never_below_the_raw_p_value_and_keeps_the_order(raw: list[float]) -> None:
    adjusted = holm(raw)
    assert (adjusted >= raw).all()
    assert (adjusted <= 1.0).all()
    assert (np.diff(adjusted[np.argsort(raw, kind="stable")]) >= 0.0).all()


@pytest.mark.parametrize("raw", [[[0.1]], [1.1], [-0.1], [float("nan")]])
def test_holm_refuses_what_is_no_p_value(raw: object) -> None:
    with pytest.raises(ValueError, match="p_values"):
        holm(raw)  # type: ignore[arg-type]


@pytest.mark.parametrize("size", [5, 9])
def test_exact_sign_flips_agree_with_scipy(size: int) -> None:
    values = np.random.default_rng(size).normal(0.4, 1.0, size)
    oracle = stats.permutation_test((values,), np.mean, permutation_type="samples", n_resamples=np.inf)
    assert sign_flip_p(values) == pytest.approx(oracle.pvalue)


def test_drawn_sign_flips_agree_with_the_t_test_of_many_pairs() -> None:
    values = np.random.default_rng(0).normal(0.12, 1.0, 300)
    assert sign_flip_p(values, samples=20_000) == pytest.approx(stats.ttest_1samp(values, 0.0).pvalue, abs=0.01)


def test_equal_arms_have_a_p_value_of_one() -> None:
    assert sign_flip_p(np.zeros(20)) == 1.0


@given(RETURNS)
def test_sign_flips_do_not_depend_on_which_arm_comes_first(values: list[float]) -> None:
    assert sign_flip_p(values) == sign_flip_p([-one for one in values])


@given(RETURNS, RETURNS)
def test_improvement_is_mann_whitney_u_and_sums_to_one(ours: list[float], theirs: list[float]) -> None:
    found = probability_of_improvement(ours, theirs)
    assert found == pytest.approx(stats.mannwhitneyu(ours, theirs).statistic / (len(ours) * len(theirs)))
    assert found + probability_of_improvement(theirs, ours) == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("n", "comparisons", "runs"),
    [
        (6, 1, 2000),
        (7, 3, 2000),
        (8, 1, 2000),
        (8, 6, 2000),
        (10, 3, 1000),
        (12, 6, 500),
        (13, 1, 4000),
        (14, 1, 200),
        (20, 3, 100),
        (13, 21, 500),
        (16, 1, 100),
    ],
)
def test_sign_flips_find_the_detectable_effect_at_its_power(n: int, comparisons: int, runs: int) -> None:
    """Pairs with the standard deviation that the effect is computed from, against the test itself."""
    scale = np.arange(n, dtype=float)
    effect = minimum_detectable_effect(3.0 * scale / scale.std(ddof=1), comparisons)
    assert effect is not None
    random = np.random.default_rng(n)
    shown = [sign_flip_p(random.normal(effect, 3.0, n)) <= 0.05 / comparisons for _ in range(runs)]
    error = np.sqrt(0.8 * 0.2 / runs)
    assert 0.79 - 3.0 * error <= np.mean(shown) <= 0.81 + 3.0 * error


@pytest.mark.parametrize(("n", "comparisons"), [(6, 1), (8, 6), (9, 12)])
def test_where_all_signs_must_agree_the_detectable_effect_is_exact(n: int, comparisons: int) -> None:
    """P(all n of Normal(d, 1) > 0) = Phi(d)^n."""
    scale = np.arange(n, dtype=float)
    found = minimum_detectable_effect(scale / scale.std(ddof=1), comparisons)
    assert found == pytest.approx(stats.norm.ppf(0.8 ** (1 / n)), rel=0.02)


@pytest.mark.parametrize("n", [13, 14])
def test_in_a_single_comparison_the_simulated_effect_is_nearly_bloom_s(n: int) -> None:
    """There Bloom's has the power that it promises, so what is further from it was found from too few draws."""
    scale = np.arange(n, dtype=float)
    factor = stats.t.ppf(1.0 - 0.05 / 2, n - 1) + stats.t.ppf(0.8, n - 1)
    found = minimum_detectable_effect(scale / scale.std(ddof=1))
    assert found == pytest.approx(factor / np.sqrt(n), rel=0.015)


def test_the_detectable_effect_of_many_pairs_is_bloom_s() -> None:
    values = np.random.default_rng(1).normal(0.0, 3.0, 200)
    factor = stats.t.ppf(1.0 - 0.05 / 6, 199) + stats.t.ppf(0.8, 199)
    assert minimum_detectable_effect(values, 3) == pytest.approx(factor * values.std(ddof=1) / np.sqrt(200))


@pytest.mark.parametrize(("n", "comparisons", "is_known"), [(5, 1, False), (6, 1, True), (6, 2, False), (7, 3, True)])
def test_pairs_that_can_show_nothing_have_no_detectable_effect(n: int, comparisons: int, is_known: bool) -> None:
    values = np.arange(1.0, n + 1.0)
    assert (minimum_detectable_effect(values, comparisons) is not None) is is_known
    assert (sign_flip_p(values) * comparisons <= 0.05) is is_known
    assert minimum_detectable_effect(np.full(20, 0.1)) is None, "equal differences have no spread"


@pytest.mark.parametrize(("comparisons", "power", "alpha"), [(0, 0.8, 0.05), (1, 0.4, 0.05), (1, 1.0, 0.05)])
def test_a_detectable_effect_needs_probabilities(comparisons: int, power: float, alpha: float) -> None:
    with pytest.raises(ValueError, match="must lie in"):
        minimum_detectable_effect([1.0, 2.0], comparisons, power, alpha)


def test_a_drawn_p_value_counts_the_observed_signs_and_is_never_zero() -> None:
    assert sign_flip_p(np.arange(1.0, 41.0), samples=99) == 1 / 100


def test_mann_whitney_of_the_worked_example() -> None:
    ours, theirs = [19, 22, 16, 29, 24], [20, 11, 17, 12]
    assert probability_of_improvement(ours, theirs) * len(ours) * len(theirs) == 17
    assert mann_whitney_p(ours, theirs) == pytest.approx(0.111111, abs=1e-6)


@given(RETURNS, RETURNS)
def test_mann_whitney_is_exact_with_ties_too(values: list[float], others: list[float]) -> None:
    """Against the labels that are enumerated one by one."""
    ours, theirs = values[:4], others[:4]
    found, pooled = probability_of_improvement(ours, theirs), [*ours, *theirs]
    labelled = [
        probability_of_improvement(
            [pooled[at] for at in chosen], [value for at, value in enumerate(pooled) if at not in chosen]
        )
        for chosen in combinations(range(len(pooled)), len(ours))
    ]
    below, above = (np.mean([sign * one <= sign * found + 1e-12 for one in labelled]) for sign in (1, -1))
    assert mann_whitney_p(ours, theirs) == pytest.approx(min(1.0, 2 * min(below, above)))
    assert mann_whitney_p(ours, theirs) == pytest.approx(mann_whitney_p(theirs, ours))


def test_mann_whitney_agrees_with_scipy_on_many_values() -> None:
    generator = np.random.default_rng(3)
    ours, theirs = generator.normal(0.3, 1.0, 60), generator.normal(0.0, 1.0, 70)
    assert mann_whitney_p(ours, theirs) == pytest.approx(stats.mannwhitneyu(ours, theirs, method="exact").pvalue)
