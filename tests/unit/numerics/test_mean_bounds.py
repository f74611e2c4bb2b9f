"""Lower bounds at small levels: closed forms, a literal twin, laws, and measured error."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from simic.numerics.mean_bounds import LEAST_STRATUM, lower_bound

SKEWED = np.array([1.0, 2.0, 2.5, 3.0, -9.0, 2.0])


@pytest.mark.parametrize("alpha", [0.2, 0.01, 1e-6])
def test_without_strata_and_skew_it_is_students_bound(alpha: float) -> None:
    values = np.array([-2.0, -1.0, 0.0, 1.0, 2.0]) + 7.0
    oracle = stats.t(df=4, loc=7.0, scale=stats.sem(values)).ppf(alpha)
    assert lower_bound(values, alpha).lower == pytest.approx(oracle)


def test_within_strata_only_the_spread_inside_them_counts() -> None:
    """Welch's two-sample interval is that of the sum of two strata's means, here of equal size."""
    left, right = np.arange(LEAST_STRATUM, dtype=float), 100.0 + 6.0 * np.arange(LEAST_STRATUM)
    found = lower_bound([*left, *right], 0.05, ["a"] * LEAST_STRATUM + ["b"] * LEAST_STRATUM)
    welch = stats.ttest_ind(left, -right, equal_var=False)
    assert found.lower == pytest.approx(welch.confidence_interval(0.90).low / 2.0)


def test_a_skew_to_the_left_lowers_the_bound_as_halls_transformation_says() -> None:
    """g(T) = T + a T^2 / 3 + a^2 T^3 / 27 + a / 6 of the bound's own T is Student's quantile (Hall 1992)."""
    found = lower_bound(SKEWED, 0.01)
    error, n = stats.sem(SKEWED), len(SKEWED)
    a = stats.skew(SKEWED, bias=False) * SKEWED.std(ddof=1) ** 3 / n**2 / error**3
    t = float((SKEWED.mean() - found.lower) / error)
    assert t + a * t**2 / 3 + a**2 * t**3 / 27 + a / 6 == pytest.approx(stats.t(df=n - 1).ppf(0.99))
    assert found.lower < SKEWED.mean() - stats.t(df=n - 1).ppf(0.99) * error
    assert found.detectable == pytest.approx((t + stats.norm.ppf(0.8)) * error)


def test_a_skew_to_the_right_is_not_corrected() -> None:
    found = lower_bound(-SKEWED, 0.01)
    student = stats.t(df=5, loc=-SKEWED.mean(), scale=stats.sem(SKEWED)).ppf(0.01)
    assert found.lower == pytest.approx(student)


def test_equal_entries_have_their_mean_as_bound() -> None:
    found = lower_bound(np.full((2, 8), 0.5), [0.01, 1e-6], ["a", "b"] * 4)
    assert found.lower.tolist() == found.mean.tolist() == [0.5, 0.5]
    assert found.detectable.tolist() == [0.0, 0.0]


@pytest.mark.parametrize("small", [1, LEAST_STRATUM - 1])
def test_a_small_stratum_leaves_no_strata(small: int) -> None:
    values = np.random.default_rng(0).normal(size=small + LEAST_STRATUM)
    assert lower_bound(values, 0.01, ["a"] * small + ["b"] * LEAST_STRATUM) == lower_bound(values, 0.01)


@pytest.mark.parametrize("size", [2, 4, 6, LEAST_STRATUM])
def test_strata_of_few_pairs_and_unequal_spread_keep_the_level(size: int) -> None:
    """With the spread within ten such strata alone, 2 pairs each exceed this level 16 times as often."""
    spreads, alpha, samples = np.array([30.0, *[1.0] * 9]), 1e-3, 60_000
    values = np.random.default_rng(1).normal(size=(samples, 10, size)) * spreads[:, None]
    found = lower_bound(values.reshape(samples, -1), np.full(samples, alpha), np.repeat(np.arange(10), size))
    assert (found.lower > 0.0).mean() <= 1.2 * alpha


@given(
    st.lists(st.floats(-100.0, 100.0), min_size=4, max_size=40), st.floats(1e-9, 0.4), st.floats(-50.0, 50.0),
    st.floats(0.1, 10.0),
)  # fmt: skip
def test_laws(values: list[float], alpha: float, shift: float, scale: float) -> None:
    data, strata = np.array(values), [row % 2 for row in range(len(values))]
    found, half = lower_bound(data, alpha, strata), lower_bound(data, alpha / 2.0, strata)
    tolerance = 1e-6 * (1.0 + abs(float(found.lower)) + abs(shift)) * scale + 1e-6
    assert found.lower <= found.mean + tolerance
    assert half.lower <= found.lower + tolerance, "a smaller level never raises the bound"
    assert lower_bound(data * scale, alpha, strata).lower == pytest.approx(float(found.lower) * scale, abs=tolerance)
    if data.std() > 1e-3:  # else the shift leaves no digits of the spread
        assert lower_bound(data + shift, alpha, strata).lower == pytest.approx(found.lower + shift, abs=1e-4)
    both = lower_bound(np.stack([data, data[::-1]]), [alpha, alpha / 2.0], strata)
    assert both.lower[0] == pytest.approx(float(found.lower), abs=tolerance), "samples do not mix"


@pytest.mark.parametrize(
    ("values", "alpha", "strata"),
    [
        ([1.0], 0.1, None), (1.0, 0.1, None), ([1.0, np.nan], 0.1, None), ([1.0, 2.0], 0.0, None),
        ([1.0, 2.0], 0.5, None), ([1.0, 2.0], np.nan, None), ([1.0, 2.0], 0.1, ["a"]),
    ],
)  # fmt: skip
def test_what_is_no_sample_or_level_is_refused(values: Any, alpha: float, strata: Any) -> None:
    with pytest.raises(ValueError, match=r"expected|must lie"):
        lower_bound(values, alpha, strata)
