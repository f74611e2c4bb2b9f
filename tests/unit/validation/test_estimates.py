"""Paired estimates: what the gate's intervals promise."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats

from simic.contracts.settings.run import TrialConfig
from simic.validation.trials import FEW, paired_estimate

FAMILIES = [name for name in ("cap", "select", "gain", "noisy", "fine") for _ in range(32)]
CONFIG = TrialConfig(bootstrap_samples=500)
Noise = Callable[[np.random.Generator, int], NDArray[np.float64]]


def _normal(generator: np.random.Generator, n: int) -> NDArray[np.float64]:
    return generator.normal(0.0, 9.0, n)


def _heavy(generator: np.random.Generator, n: int) -> NDArray[np.float64]:
    return 6.0 * generator.standard_t(4, n)


def _skewed(generator: np.random.Generator, n: int) -> NDArray[np.float64]:
    """Mostly a little better, now and then ruined: what growing in the wrong place looks like. The mean is 0."""
    return np.where(generator.random(n) < 0.2, -12.0, 3.0)


@pytest.mark.parametrize("noise", [_normal, _heavy, _skewed])
def test_drl13_arms_that_do_not_differ_are_told_apart_in_at_most_five_per_cent(noise: Noise) -> None:
    """The gate asks for a lower bound above zero. Host effects are shared by both arms, so pairing removes them."""
    generator = np.random.default_rng(20260102)
    runs, found = 400, 0
    for _ in range(runs):
        shared = generator.normal(50.0, 15.0, len(FAMILIES))
        estimate = paired_estimate(shared + noise(generator, len(FAMILIES)), shared, CONFIG, 0, FAMILIES)
        found += estimate.lower > 0
    assert found / runs <= 0.05


def test_a_difference_as_large_as_the_one_we_look_for_is_found() -> None:
    generator = np.random.default_rng(1)
    found = 0
    for _ in range(100):
        differences = generator.normal(3.4, 9.0, len(FAMILIES))
        found += paired_estimate(differences, np.zeros(len(FAMILIES)), CONFIG, 0, FAMILIES).lower > 0
    assert found >= 95


def test_an_arm_against_itself_differs_by_exactly_nothing() -> None:
    returns = np.random.default_rng(2).normal(50, 10, len(FAMILIES))
    estimate = paired_estimate(returns, returns, CONFIG, 0, FAMILIES)
    assert (estimate.mean, estimate.lower, estimate.upper) == (0.0, 0.0, 0.0)


def test_equal_arguments_give_equal_intervals_and_the_seed_matters() -> None:
    ours = np.random.default_rng(3).normal(1.0, 9.0, len(FAMILIES))
    first, second, third = (paired_estimate(ours, 0 * ours, CONFIG, seed, FAMILIES) for seed in (0, 0, 1))
    assert first == second
    assert first != third


@pytest.mark.parametrize(("hosts", "families"), [(2, 1), (4, 1), (8, 1), (29, 1), (30, 1), (10, 5), (40, 5), (4, 4)])
def test_the_interval_of_few_hosts_contains_the_mean_as_often_as_it_says(hosts: int, families: int) -> None:
    """A percentile bootstrap contains it in 50 % of the draws of 2 hosts, and in 80 % of those of 4."""
    generator, labels = np.random.default_rng(hosts), [str(row % families) for row in range(hosts)]
    is_resampled = hosts // families >= FEW
    draws, offsets = 300 if is_resampled else 1000, np.arange(hosts) % families if families < hosts else 0
    found = [
        paired_estimate(generator.normal(3.0, 2.0, hosts) + offsets, np.zeros(hosts), CONFIG, seed, labels)
        for seed in range(draws)
    ]
    mean = 3.0 + np.mean(offsets)
    share = np.mean([one.lower <= mean <= one.upper for one in found])
    assert share >= 0.95 - 3.0 * np.sqrt(0.95 * 0.05 / draws) - (0.01 if is_resampled else 0.0)


def test_few_hosts_of_each_family_have_students_interval_however_many_families_there_are() -> None:
    """Of ten families of three hosts, of which one varies most, a bootstrap covers the mean in 80 % of the draws."""
    generator, labels = np.random.default_rng(6), [str(row // 3) for row in range(30)]
    spread = np.where(np.array(labels) == "0", 5.0, 0.2)
    found = [
        paired_estimate(spread * generator.normal(size=30), np.zeros(30), CONFIG, seed, labels) for seed in range(1000)
    ]
    assert np.mean([one.lower <= 0.0 <= one.upper for one in found]) >= 0.92


def test_the_interval_of_few_hosts_is_students() -> None:
    ours = np.random.default_rng(5).normal(1.0, 9.0, FEW - 1)
    expected = stats.ttest_1samp(ours, 0.0).confidence_interval(0.95)
    found = paired_estimate(ours, 0 * ours, CONFIG, 0)
    assert (found.lower, found.upper) == pytest.approx((expected.low, expected.high))
    assert paired_estimate(ours, 0 * ours, CONFIG, 1) == found, "nothing is drawn"


def test_keeping_the_mix_of_families_leaves_their_differences_out_of_the_interval() -> None:
    ours = np.repeat([11.0, 15.0, 12.0, 4.0, 0.0], 32) + np.random.default_rng(4).normal(0, 1, 160)
    mixed = paired_estimate(ours, 0 * ours, CONFIG, 0)
    kept = paired_estimate(ours, 0 * ours, CONFIG, 0, FAMILIES)
    assert kept.mean == mixed.mean
    assert kept.upper - kept.lower < 0.5 * (mixed.upper - mixed.lower)
