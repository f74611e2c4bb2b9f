"""Bootstrap intervals: coverage is itself a test."""

from __future__ import annotations

import numpy as np
import pytest

from simic.numerics import intervals
from simic.numerics.intervals import paired_bootstrap


def test_same_seed_same_bits_other_seed_other_bounds() -> None:
    values = np.random.default_rng(0).normal(1.0, 3.0, 80)
    assert paired_bootstrap(values, 0.95, 2000, 7) == paired_bootstrap(values, 0.95, 2000, 7)
    assert paired_bootstrap(values, 0.95, 2000, 7) != paired_bootstrap(values, 0.95, 2000, 8)


def test_agrees_with_the_normal_interval_on_many_normal_pairs() -> None:
    values = np.random.default_rng(1).normal(2.0, 5.0, 2000)
    mean, lower, upper = paired_bootstrap(values, 0.95, 4000, 0)
    half = 1.959964 * values.std() / np.sqrt(len(values))
    assert mean == pytest.approx(values.mean())
    np.testing.assert_allclose([mean - lower, upper - mean], [half, half], rtol=0.08)


@pytest.mark.parametrize("method", ["percentile", "bca"])
def test_coverage_is_near_nominal(method: str) -> None:
    generator = np.random.default_rng(2)
    trials, hits = 400, 0
    for trial in range(trials):
        _, lower, upper = paired_bootstrap(generator.normal(0.7, 2.0, 60), 0.9, 400, trial, method=method)
        hits += lower <= 0.7 <= upper
    # At n = 60 the percentile interval of a mean is a little short: about 0.89.
    assert hits / trials >= 0.88 - 3 * np.sqrt(0.9 * 0.1 / trials)
    assert hits / trials <= 0.9 + 3 * np.sqrt(0.9 * 0.1 / trials)


def test_width_falls_with_the_root_of_n() -> None:
    generator = np.random.default_rng(3)
    widths = []
    for n in (100, 400, 1600):
        _, lower, upper = paired_bootstrap(generator.normal(size=n), 0.95, 3000, 0)
        widths.append((upper - lower) * np.sqrt(n))
    assert max(widths) / min(widths) < 1.25


def test_strata_remove_the_spread_between_families() -> None:
    """Two families with different means and no spread inside: stratified, the interval is a point."""
    values = np.array([1.0] * 10 + [5.0] * 10)
    strata = np.array(["cap"] * 10 + ["gain"] * 10)
    assert paired_bootstrap(values, 0.95, 500, 0, strata=strata) == (3.0, 3.0, 3.0)
    _, lower, upper = paired_bootstrap(values, 0.95, 500, 0)
    assert upper - lower > 1.0


def test_blocks_do_not_change_the_result(monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory stays bounded, and where a block ends does not show."""
    values = np.random.default_rng(4).normal(size=50)
    whole = paired_bootstrap(values, 0.95, 1000, 5)
    monkeypatch.setattr(intervals, "_BLOCK_ELEMENTS", 333)
    assert paired_bootstrap(values, 0.95, 1000, 5) == whole


def test_bca_follows_the_skew() -> None:
    values = np.random.default_rng(5).lognormal(0.0, 1.0, 60)
    _, low_p, high_p = paired_bootstrap(values, 0.95, 4000, 0)
    _, low_b, high_b = paired_bootstrap(values, 0.95, 4000, 0, method="bca")
    assert low_b > low_p
    assert high_b > high_p


def test_identical_pairs_give_a_point() -> None:
    for method in ("percentile", "bca"):
        assert paired_bootstrap([2.0, 2.0, 2.0], 0.95, 100, 0, method=method) == (2.0, 2.0, 2.0)


@pytest.mark.parametrize("values", [[1.0], [], [[1.0, 2.0]], [1.0, np.nan]])
def test_what_is_no_sample_of_pairs_is_refused(values: list[float]) -> None:
    with pytest.raises(ValueError, match="differences"):
        paired_bootstrap(values, 0.95, 100, 0)


def test_strata_must_match() -> None:
    with pytest.raises(ValueError, match="strata"):
        paired_bootstrap([1.0, 2.0], 0.95, 100, 0, strata=["a"])


@pytest.mark.parametrize(("confidence", "samples"), [(0.0, 100), (1.0, 100), (float("nan"), 100), (0.95, 0)])
def test_a_confidence_outside_0_and_1_or_no_samples_are_refused(confidence: float, samples: int) -> None:
    with pytest.raises(ValueError, match="confidence"):
        paired_bootstrap([1.0, 2.0], confidence, samples, 0)
