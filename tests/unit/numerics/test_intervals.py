"""Bootstrap intervals: coverage is itself a test."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy import stats

from simic.numerics import intervals
from simic.numerics.intervals import (
    Interval,
    binomial_interval,
    crossed_ratio,
    crossed_student,
    empirical_bernstein,
    hoeffding,
    paired_bootstrap,
    student_interval,
    student_quantile,
)


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


@pytest.mark.parametrize(("families", "hosts", "least"), [(5, 1, 0.75), (5, 2, 0.84), (13, 2, 0.9), (5, 4, 0.9)])
def test_few_hosts_in_each_stratum_narrow_no_interval(families: int, hosts: int, least: float) -> None:
    """Bootstrapped as they are, strata of one host give intervals without width, and five of two hosts cover 76 %."""
    draw, strata, covered = np.random.default_rng(3), np.repeat(np.arange(families), hosts), 0
    for number in range(300):
        found = paired_bootstrap(draw.normal(size=families * hosts), 0.95, 400, number, strata=strata)
        covered += found.lower <= 0.0 <= found.upper
    assert covered / 300 >= least


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
    monkeypatch.setattr(intervals, "BLOCK_ELEMENTS", 333)
    assert paired_bootstrap(values, 0.95, 1000, 5) == whole


def test_bca_follows_the_skew() -> None:
    values = np.random.default_rng(5).lognormal(0.0, 1.0, 60)
    _, low_p, high_p = paired_bootstrap(values, 0.95, 4000, 0)
    _, low_b, high_b = paired_bootstrap(values, 0.95, 4000, 0, method="bca")
    assert low_b > low_p
    assert high_b > high_p


def crossed(generator: np.random.Generator, seeds: int, hosts: int, scales: tuple[float, float, float]) -> np.ndarray:
    """A table with independent effects of seeds, hosts and cells of these standard deviations, and mean 2."""
    a, b, e = scales
    effects = generator.normal(0.0, a, (seeds, 1)) + generator.normal(0.0, b, (1, hosts))
    return np.asarray(2.0 + effects + generator.normal(0.0, e, (seeds, hosts)))


def crossed_bootstrap(values: Any, confidence: float, samples: int, seed: int, strata: Any = None) -> Interval:
    """The resampled interval of a mean: a ratio to ones."""
    found = crossed_ratio(values, np.ones(values.shape[1]), confidence, samples, seed, strata=strata)
    assert found is not None
    return found


def test_crossed_width_is_that_of_the_variance_of_rows_columns_and_cells() -> None:
    """Oracle: the exact variance of a resampled mean, from the decomposition of the table."""
    values = crossed(np.random.default_rng(6), 12, 200, (0.7, 6.0, 4.0))
    mean = values.mean()
    a, b = values.mean(axis=1) - mean, values.mean(axis=0) - mean
    r = values - mean - a[:, None] - b
    variance = (a**2).sum() / 12**2 + (b**2).sum() / 200**2 + (r**2).sum() / (12 * 200) ** 2
    found = crossed_bootstrap(values, 0.95, 20_000, 0)
    half = 1.959964 * np.sqrt(variance)
    assert found.mean == pytest.approx(mean)
    np.testing.assert_allclose([mean - found.lower, found.upper - mean], [half, half], rtol=0.05)
    within = paired_bootstrap(values.mean(axis=0), 0.95, 4000, 0)
    assert found.upper - found.lower > 1.03 * (within.upper - within.lower), "hosts alone leave out the seeds"


def test_crossed_coverage_is_near_nominal_when_known_components_make_the_table() -> None:
    generator = np.random.default_rng(7)
    trials, hits = 300, 0
    for trial in range(trials):
        found = crossed_bootstrap(crossed(generator, 5, 60, (0.3, 4.0, 3.0)), 0.9, 300, trial)
        hits += found.lower <= 2.0 <= found.upper
    assert 0.86 - 3 * np.sqrt(0.09 / trials) <= hits / trials <= 0.95 + 3 * np.sqrt(0.0475 / trials)


def test_crossed_student_adds_the_squares_of_two_student_intervals() -> None:
    """Oracle: Student's interval of the means of the seeds, and that of the means of the hosts, by scipy."""
    values = crossed(np.random.default_rng(10), 3, 8, (1.0, 4.0, 2.0))
    rows, columns = values.mean(axis=1), values.mean(axis=0)
    halves = [stats.t.ppf(0.95, len(means) - 1) * means.std(ddof=1) / np.sqrt(len(means)) for means in (rows, columns)]
    found = crossed_student(values, 0.9)
    assert found.mean == pytest.approx(values.mean())
    assert [found.mean - found.lower, found.upper - found.mean] == pytest.approx([np.hypot(*halves)] * 2)
    strata = np.repeat(["cap", "gain"], 4)
    shifted = np.where(strata == "cap", 100.0, 0.0) + values
    assert crossed_student(shifted, 0.9, strata=strata).upper - shifted.mean() == pytest.approx(
        crossed_student(values, 0.9, strata=strata).upper - values.mean()
    ), "the difference between strata is no chance"
    assert crossed_student(values[:1], 0.9) == pytest.approx(student_interval(values[0], 0.9))
    alone = np.array(["cap"] * 7 + ["gain"])
    assert crossed_student(values, 0.9, strata=alone) == found, "one host alone has no spread within its stratum"


@pytest.mark.parametrize("seeds", [2, 3, 5])
@pytest.mark.parametrize("between_hosts", [0.0, 4.0])
def test_crossed_student_covers_with_few_seeds(seeds: int, between_hosts: float) -> None:
    generator, draws = np.random.default_rng(11), 2000
    tables = (crossed(generator, seeds, 16, (1.0, between_hosts, 1.0)) for _ in range(draws))
    found = [crossed_student(table) for table in tables]
    hits = sum(one.lower <= 2.0 <= one.upper for one in found)
    assert hits / draws >= 0.94 - 3 * np.sqrt(0.05 * 0.95 / draws)


@pytest.mark.parametrize(("families", "hosts"), [(5, 2), (10, 3), (5, 8)])
@pytest.mark.parametrize("seeds", [1, 2])
def test_crossed_student_covers_where_one_family_varies_most(seeds: int, families: int, hosts: int) -> None:
    """A variance pooled over families has too many degrees of freedom: it covers 78 % of the first case."""
    generator, draws, labels = np.random.default_rng(12), 2000, np.repeat(np.arange(families), hosts)
    spread = np.where(labels == 0, 5.0, 0.2)
    tables = np.repeat(generator.normal(size=(draws, 1, len(labels))) * spread, seeds, axis=1)
    found = [crossed_student(table, strata=labels) for table in tables]
    assert np.mean([one.lower <= 0.0 <= one.upper for one in found]) >= 0.92


def test_crossed_student_has_the_degrees_of_freedom_of_welch() -> None:
    """Oracle: scipy's test of two samples of unequal variance, whose difference of means has the same variance."""
    one, other = np.random.default_rng(13).normal(0.0, 1.0, 6), np.random.default_rng(14).normal(0.0, 4.0, 9)
    welch = stats.ttest_ind(one, other, equal_var=False)
    scaled = np.concatenate([one * 15 / 6, other * 15 / 9])
    found = crossed_student(scaled[np.newaxis], strata=np.repeat(["a", "b"], [6, 9]))
    error = np.sqrt(one.var(ddof=1) / 6 + other.var(ddof=1) / 9)
    assert found.upper - found.mean == pytest.approx(stats.t.ppf(0.975, np.floor(welch.df)) * error)


def test_of_four_hosts_a_bootstrap_covers_far_less_than_student() -> None:
    """Why differences within a family have Student's interval: 79 % instead of 95 %."""
    draws = np.random.default_rng(0).normal(size=(2000, 4))
    boots = [paired_bootstrap(one, samples=300, seed=seed) for seed, one in enumerate(draws)]
    students = [crossed_student(one[np.newaxis]) for one in draws]
    assert np.mean([one.lower < 0.0 < one.upper for one in boots]) == pytest.approx(0.79, abs=0.015)
    assert np.mean([one.lower < 0.0 < one.upper for one in students]) == pytest.approx(0.95, abs=0.015)


def test_one_seed_has_the_interval_of_its_hosts() -> None:
    values = np.random.default_rng(8).normal(1.0, 3.0, 40)
    strata = np.repeat(["cap", "gain"], 20)
    plain = paired_bootstrap(values, 0.95, 2000, 3, strata=strata)
    assert crossed_bootstrap(values[None], 0.95, 2000, 3, strata=strata) == pytest.approx(plain)


def test_a_ratio_divides_means_over_the_same_hosts() -> None:
    """Three quarters of every host's gain is a share without spread; an uncertain sign has no share."""
    gains = np.random.default_rng(9).normal(5.0, 4.0, 60)
    table = np.stack([0.5 * gains, gains])
    one = crossed_ratio(table[:1], gains, 0.95, 500, 0)
    assert one == pytest.approx((0.5, 0.5, 0.5))
    two = crossed_ratio(table, gains, 0.95, 500, 0)
    assert two == pytest.approx((0.75, 0.5, 1.0)), "which seed is drawn decides"
    assert crossed_ratio(table, gains - gains.mean(), 0.95, 500, 0) is None
    assert crossed_ratio(table, -gains, 0.95, 500, 0) is None


@pytest.mark.parametrize("shape", [(5,), (0, 5), (2, 1), (2, 2, 2)])
def test_what_is_no_table_of_seeds_and_hosts_is_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=r"expected \[S, N\]"):
        crossed_student(np.ones(shape))
    with pytest.raises(ValueError, match="denominators"):
        crossed_ratio(np.ones((2, 3)), np.ones(2))


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


@pytest.mark.parametrize("freedom", [1, 2, 3, 4, 9, 10, 99, 1000])
@pytest.mark.parametrize("level", [0.5, 0.8, 0.975, 0.9995])
def test_student_quantiles_agree_with_scipy(level: float, freedom: int) -> None:
    assert student_quantile(level, freedom) == pytest.approx(stats.t.ppf(level, freedom), rel=1e-9, abs=1e-9)


def test_intervals_of_four_values_by_hand() -> None:
    values = [0.0, 0.0, 1.0, 1.0]  # mean 1/2, sample variance 1/3
    half = stats.t.ppf(0.975, 3) * np.sqrt(1 / 3) / 2
    assert student_interval(values) == pytest.approx((0.5, 0.5 - half, 0.5 + half))
    half = np.sqrt(np.log(40) / 8)
    assert hoeffding(values, 0.0, 1.0) == pytest.approx((0.5, 0.5 - half, 0.5 + half))
    half = np.sqrt(2 * (1 / 3) * np.log(80) / 4) + 7 * np.log(80) / 9
    assert empirical_bernstein(values, 0.0, 1.0) == pytest.approx((0.5, 0.5 - half, 0.5 + half))
    shifted = empirical_bernstein([3.0, 3.0, 5.0, 5.0], 3.0, 5.0)
    assert shifted == pytest.approx((4.0, 4.0 - 2 * half, 4.0 + 2 * half)), "it scales with the range"


@pytest.mark.parametrize("size", [10, 100, 1000])
def test_bounds_for_any_distribution_cover_the_mean_and_shrink(size: int) -> None:
    """Rare events and heavy tails too, where Student's interval misses the mean far more often than it says."""
    generator, draws = np.random.default_rng(size), 300
    rare = (generator.random((draws, size)) < 0.01).astype(float)
    heavy = np.minimum(generator.lognormal(-2.0, 1.5, (draws, size)), 1.0)
    truth = np.minimum(generator.lognormal(-2.0, 1.5, 2_000_000), 1.0).mean()
    for values, mean in ((generator.random((draws, size)), 0.5), (rare, 0.01), (heavy, truth)):
        for bound in (hoeffding, empirical_bernstein):
            found = np.array([bound(row, 0.0, 1.0)[1:] for row in values])
            assert ((found[:, 0] <= mean) & (mean <= found[:, 1])).mean() >= 0.95 - 3 * np.sqrt(0.05 * 0.95 / draws)
            more = bound(np.tile(values[0], 4), 0.0, 1.0)
            assert more.upper - more.lower < 0.6 * (found[0, 1] - found[0, 0]), "not wider with n"
    student = np.array([student_interval(row)[1:] for row in rare])
    covered = ((student[:, 0] <= 0.01) & (student[:, 1] >= 0.01)).mean()
    assert (covered < 0.8) == (size < 1000)


def test_values_outside_the_declared_range_are_refused() -> None:
    for bound in (hoeffding, empirical_bernstein):
        for low, high in ((0.0, 0.5), (1.0, 0.0)):
            with pytest.raises(ValueError, match="declared range"):
                bound([0.0, 1.0], low, high)
    with pytest.raises(ValueError, match="n >= 2"):
        student_interval([1.0])


@pytest.mark.parametrize(("successes", "n"), [(0, 1), (1, 1), (0, 30), (30, 30), (7, 10), (41, 50), (800, 1000)])
@pytest.mark.parametrize("confidence", [0.8, 0.95])
def test_the_exact_interval_of_a_share_is_that_of_clopper_and_pearson(
    successes: int, n: int, confidence: float
) -> None:
    found = binomial_interval(successes, n, confidence)
    exact = stats.binomtest(successes, n).proportion_ci(confidence, method="exact")
    assert found == pytest.approx((successes / n, exact.low, exact.high), abs=1e-9)
