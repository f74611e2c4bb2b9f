"""Tests that hold at every look: the closed form, a literal integral, laws, and errors under peeking."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from scipy import integrate, stats

from simic.numerics.sequential import anytime_interval, anytime_p

HOSTS, FIRST, BEST = 320, 40, 160
LOOKS = range(FIRST, HOSTS + 1, 8)


def test_p_is_one_over_the_mixture_of_the_supermartingales() -> None:
    """M is the mean of exp(l S - l^2 V / 2) over a normal l, integrated here."""
    values = np.array([1.0, -0.5, 2.0, 1.5, 0.25, 1.0])
    variance = 8.0 / ((values[:3] ** 2).mean() * 6)
    total, squares = values.sum(), (values**2).sum()
    density = stats.norm(scale=math.sqrt(variance)).pdf
    mixed, _ = integrate.quad(lambda x: math.exp(x * total - x * x * squares / 2.0) * density(x), -20.0, 20.0)
    assert float(anytime_p(values, 3, 6)) == pytest.approx(1.0 / mixed)


def test_over_all_patterns_of_signs_the_mixture_has_mean_at_most_one() -> None:
    """So the chance of ever reaching 1/a is at most a (Ville)."""
    sizes = np.array([0.5, 1.0, 3.0, 0.1, 2.0, 1.0, 0.7, 1.1])
    signs = np.array(list(itertools.product((-1.0, 1.0), repeat=len(sizes))))
    p = anytime_p(signs * sizes, 4, 8)
    assert (1.0 / p[p < 1.0]).sum() <= len(signs)
    for level in (0.05, 0.2, 0.5):
        ever = np.min([anytime_p((signs * sizes)[:, :n], 4, 8) for n in range(4, 9)], axis=0)
        assert (ever <= level).mean() <= level


@pytest.mark.parametrize("name", ["normal", "equal", "heavy"])
def test_under_peeking_at_every_batch_the_error_stays_at_the_level(name: str) -> None:
    random = np.random.default_rng(0)
    shape = (1000, HOSTS)
    values = {
        "normal": random.standard_normal(shape),
        "equal": random.standard_normal(shape) * (random.random(shape) < 0.3),
        "heavy": random.standard_t(3, shape),
    }[name]
    ever = np.min([anytime_p(values[:, :n], FIRST, BEST) for n in LOOKS], axis=0) <= 0.05
    assert ever.mean() <= 0.05
    # Student's test, looked at as often, errs several times as often as its level.
    student = [stats.ttest_1samp(values[:, :n], 0.0, axis=1).pvalue for n in LOOKS]
    assert (np.min(student, axis=0) <= 0.05).mean() > 0.15


def test_the_intervals_of_all_looks_contain_the_mean_and_reject_what_p_rejects() -> None:
    random, missed = np.random.default_rng(1), 0
    for _ in range(40):
        values = 0.7 + random.standard_normal(HOSTS)
        found = [anytime_interval(values[:n], 0.95, FIRST, BEST) for n in range(FIRST, HOSTS + 1, 70)]
        missed += any(not one.lower <= 0.7 <= one.upper for one in found)
        for one, n in zip(found, range(FIRST, HOSTS + 1, 70), strict=True):
            assert (one.lower > 0.0 or one.upper < 0.0) == (float(anytime_p(values[:n], FIRST, BEST)) < 0.05)
    assert missed <= 2


def test_a_large_difference_needs_fewer_hosts_than_the_fixed_number() -> None:
    values = 0.5 + np.random.default_rng(2).standard_normal((300, HOSTS))
    shown = np.array([anytime_p(values[:, :n], FIRST, BEST) <= 0.05 for n in LOOKS])
    assert shown.any(axis=0).mean() > 0.99
    assert np.mean(np.array(LOOKS)[shown.argmax(axis=0)]) < HOSTS / 3


def test_equal_and_few_values() -> None:
    assert anytime_p(np.zeros(8), 4, 8) == 1.0
    assert tuple(anytime_interval(np.full(8, 2.0), 0.95, 4, 8)) == (2.0, 2.0, 2.0)
    few = anytime_interval([1.0, 2.0, 4.0], 0.95, 3, 3)
    assert (few.lower, few.upper) == (-math.inf, math.inf)
    with pytest.raises(ValueError, match="finite"):
        anytime_p([1.0, math.nan], 2, 2)
