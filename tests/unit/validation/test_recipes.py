"""The figures of a comparison of recipes, by hand and over many equal recipes."""

from __future__ import annotations

from math import sqrt

import numpy as np
import pytest

from simic.contracts.settings.run import TrialConfig
from simic.validation.recipes import Judging, compare_recipes, least_p

JUDGING = Judging("benchmark", ("cap", "gain", "cap", "gain"), TrialConfig())
HOSTS = np.array([50.0, 60.0, 52.0, 62.0])


def test_pairs_are_paired_by_training_seed_and_host() -> None:
    ours = HOSTS + np.array([[1.0], [2.0], [3.0], [4.0]])
    theirs = HOSTS + np.array([[0.0, 1.0, 0.0, 1.0], [0.0, 0.0, 0.0, 0.0], [1.0, 1.0, 1.0, 1.0], [1.5, 1.5, 1.5, 1.5]])
    (pair,) = compare_recipes({"a": ours, "b": theirs}, JUDGING)
    assert pair.difference.mean == pytest.approx((0.5 + 2.0 + 2.0 + 2.5) / 4)
    assert [one.mean for one in pair.by_seed] == pytest.approx([0.5, 2.0, 2.0, 2.5])
    assert {name: one.mean for name, one in pair.by_family.items()} == pytest.approx(
        {"cap": 2.0 - 0.125, "gain": 1.625}
    )
    # both hosts of a family have the same differences, so its interval is that of the four trainings: 1, 2, 2, 2.5 and
    # 0, 2, 2, 2.5
    halves = {"cap": 3.1824463 * sqrt(1.1875 / 3 / 4), "gain": 3.1824463 * sqrt(3.6875 / 3 / 4)}
    assert {name: one.upper - one.mean for name, one in pair.by_family.items()} == pytest.approx(halves)
    assert {name: one.mean - one.lower for name, one in pair.by_family.items()} == pytest.approx(halves)
    # means above those of the hosts: 1, 2, 3, 4 against 0.5, 0, 1, 1.5; 1 ties with 1 and is below 1.5
    assert pair.u == 14.5
    assert (pair.probability_of_improvement, pair.effect) == (14.5 / 16, 2 * 14.5 / 16 - 1)
    assert pair.difference.n == 16


def test_intervals_cover_the_spread_between_trainings() -> None:
    """Hosts alone have no spread here."""
    (pair,) = compare_recipes({"a": HOSTS + np.array([[0.0], [4.0]]), "b": np.tile(HOSTS, (2, 1))}, JUDGING)
    half = 12.7062 * sqrt(8.0) / sqrt(2.0)
    assert (pair.difference.lower, pair.difference.upper) == pytest.approx((2.0 - half, 2.0 + half), rel=1e-4)
    assert [(one.lower, one.upper) for one in pair.by_seed] == [(0.0, 0.0), (4.0, 4.0)]


def test_the_same_recipe_twice_shows_nothing_at_all() -> None:
    table = HOSTS + np.random.default_rng(0).normal(size=(5, 4))
    (pair,) = compare_recipes({"a": table, "again": table.copy()}, JUDGING)
    assert (pair.difference.mean, pair.difference.lower, pair.difference.upper) == (0.0, 0.0, 0.0)
    assert (pair.p, pair.effect, pair.verdict) == (1.0, 0.0, "no difference shown")


def test_a_verdict_has_the_sign_of_the_effect_and_three_recipes_are_adjusted() -> None:
    generator = np.random.default_rng(1)
    tables = {name: HOSTS + shift + generator.normal(size=(5, 4)) for name, shift in (("a", 0), ("b", 9), ("c", 0))}
    pairs = {(one.recipe, one.against): one for one in compare_recipes(tables, JUDGING)}
    assert pairs["a", "b"].verdict == "worse"
    assert pairs["b", "c"].verdict == "better"
    assert pairs["a", "c"].verdict == "no difference shown"
    assert pairs["a", "b"].p == pytest.approx(2 / 252)
    assert pairs["a", "b"].adjusted_p == pytest.approx(6 / 252) == least_p(5, 3)


@pytest.mark.parametrize("shift", [-3.0, 3.0])
def test_a_recipe_that_does_not_vary_gets_no_verdict(shift: float) -> None:
    """As if all of its trainings failed: against one that varies, the test would not hold its level."""
    varied = HOSTS + shift + np.linspace(-1.0, 1.0, 4)[:, None]
    (failed,) = compare_recipes({"failed": np.tile(HOSTS, (4, 1)), "a": varied}, JUDGING)
    assert (failed.adjusted_p, failed.verdict) == (pytest.approx(2 / 70), "no difference shown")
    assert failed.unjudged is not None and "all 4 trainings of failed have the same mean return" in failed.unjudged
    (other,) = compare_recipes({"a": varied, "b": varied - 9.0}, JUDGING)
    assert (other.verdict, other.unjudged) == ("better", None)


def test_ablations_are_compared_with_the_first_recipe_alone_and_adjusted_for_these_pairs() -> None:
    generator = np.random.default_rng(1)
    tables = {name: HOSTS + shift + generator.normal(size=(5, 4)) for name, shift in (("a", 0), ("b", 9), ("c", -9))}
    found = compare_recipes(tables, JUDGING, is_against_first=True)
    assert [(one.recipe, one.against, one.verdict) for one in found] == [("b", "a", "better"), ("c", "a", "worse")]
    assert found[0].difference.mean == pytest.approx(np.mean(tables["b"] - tables["a"]))
    assert found[0].adjusted_p == pytest.approx(4 / 252) == least_p(5, len(found))


@pytest.mark.parametrize(("seeds", "pairs", "expected"), [(1, 1, 1.0), (3, 1, 0.1), (4, 1, 2 / 70), (4, 3, 6 / 70)])
def test_few_seeds_cannot_show_anything(seeds: int, pairs: int, expected: float) -> None:
    assert least_p(seeds, pairs) == pytest.approx(expected)


@pytest.mark.parametrize("shared", [0.0, 0.7])
def test_equal_recipes_are_told_apart_in_at_most_five_per_cent(shared: float) -> None:
    """Trainings of one seed may have a part of their luck in common; hosts differ much more than trainings."""
    generator, draws, wrong = np.random.default_rng(2), 800, 0
    for _ in range(draws):
        luck = sqrt(shared) * generator.normal(size=(5, 1))
        tables = {
            name: HOSTS + luck + sqrt(1.0 - shared) * generator.normal(size=(5, 1)) + generator.normal(size=(5, 4))
            for name in ("a", "b")
        }
        (pair,) = compare_recipes(tables, JUDGING)
        wrong += pair.verdict != "no difference shown"
    assert wrong / draws <= 0.05 + 3 * sqrt(0.05 * 0.95 / draws)
