"""Regions draw every cause from a range; hosts of the older sets keep their samples and orders."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from simic.hosts.batched.data import digit_pool, epoch_order, host_samples
from simic.hosts.batched.dataset import recipes_of
from simic.hosts.families._region import Region
from simic.hosts.host_sets import SETS, identify
from simic.hosts.interfaces import DataSplit, HostRecipe, Pairs
from simic.hosts.plugins import load_family
from simic.hosts.trunks.mlp import MlpTrunk

REGIONS = SETS["varied"].families
DRAWS = arrays(np.float64, 24, elements=st.floats(0.0, 1.0, exclude_max=True))


def region_of(name: str) -> Region:
    found = load_family(name)
    assert isinstance(found, Region)
    return found


def pairs_of(part: DataSplit = DataSplit.VALIDATION) -> Pairs:
    pool = digit_pool(part)
    turned = np.roll(np.arange(len(pool.labels)), 1)
    selector = np.arange(len(turned)) % 2 == 0
    images = pool.images, pool.images[turned]
    labels = pool.labels, pool.labels[turned]
    return Pairs(pool.features, pool.features[turned], *labels, selector, *images, pool.directions)


@pytest.mark.parametrize("name", REGIONS)
@given(draws=DRAWS)
def test_every_cause_lies_in_the_range_of_its_region(name: str, draws: np.ndarray) -> None:
    region, recipe = region_of(name), region_of(name).recipe(draws)
    assert all(region.hidden[0] <= units <= region.hidden[1] for units in recipe.hidden)
    assert int(region.samples[0]) <= recipe.samples <= region.samples[1]
    assert region.label_noise[0] <= recipe.label_noise <= region.label_noise[1] + 1e-9
    assert not recipe.is_linear or region.linear > 0
    if recipe.gain_blocks:
        assert region.scaled > 0
        assert region.gain_spread[0] <= recipe.gain_spread <= region.gain_spread[1] + 1e-9
        level = recipe.gain_level * len(recipe.gain_blocks)
        assert region.gain_level[0] - 1e-9 <= level <= region.gain_level[1] + 1e-9
    else:
        assert recipe.gain_spread == recipe.gain_level == 0.0
    labels = recipe.labels(pairs_of())
    assert 0 <= labels.min() <= labels.max() < recipe.classes


@pytest.mark.parametrize("name", REGIONS)
def test_a_range_is_used_from_end_to_end(name: str) -> None:
    region = region_of(name)
    low, high = (region.recipe(np.full(24, value)) for value in (0.0, 1.0 - 2.0**-53))
    assert low.hidden == (region.hidden[0],) * 2
    assert high.hidden == (region.hidden[1],) * 2
    assert (low.samples, low.label_noise) == (region.samples[0], region.label_noise[0])
    assert high.samples >= region.samples[1] - 1
    assert high.label_noise == pytest.approx(region.label_noise[1])


def test_regions_overlap_each_other_and_no_two_hosts_are_alike() -> None:
    hosts = identify("varied", range(40 * len(REGIONS)))
    recipes = recipes_of(hosts)
    told = {(one.hidden, one.samples, one.label_noise, one.gain_spread, one.labels) for one in recipes}
    assert len(told) > 0.9 * len(recipes)
    noises = {name: [r.label_noise for r, h in zip(recipes, hosts, strict=True) if h.family == name]
              for name in ("region_noisy", "region_mixed")}  # fmt: skip
    assert min(noises["region_noisy"]) < max(noises["region_mixed"])
    assert min(noises["region_mixed"]) < max(noises["region_noisy"])


def test_the_share_of_pairs_that_the_selector_decides_goes_from_none_to_all() -> None:
    pairs = pairs_of()
    draws = np.full(24, 0.5)

    def share(selected: float) -> float:
        labels = Region(selecting=1.0, selected=(selected, selected)).recipe(draws).labels(pairs)
        return float((labels == pairs.label_a)[pairs.selector].mean())

    shares = [share(value) for value in (0.0, 0.25, 0.5, 0.75, 1.0)]
    assert shares == sorted(shares, reverse=True)
    assert shares[0] == 1.0
    assert shares[-1] == pytest.approx((pairs.label_a == pairs.label_b)[pairs.selector].mean())
    assert shares[2] == pytest.approx(0.5, abs=0.15)


def test_products_at_their_ends_are_those_of_cap_and_all_four_classes_occur_between() -> None:
    pairs, cap = pairs_of(), load_family("cap")
    region = Region(products=1.0)
    for detail, choice in ((0.0, 0.0), (1.0 - 2**-53, 0.9)):
        draws = np.full(24, 0.5)
        draws[4], own = detail, np.full(24, choice)
        same = region.recipe(draws).labels(pairs) == cap.recipe(own).labels(pairs)
        assert same.mean() > 0.99
    for detail in np.linspace(0.0, 0.99, 7):
        draws = np.full(24, 0.5)
        draws[4] = detail
        assert np.bincount(region.recipe(draws).labels(pairs), minlength=4).min() > 40


@pytest.mark.parametrize(
    ("set_name", "digest"),
    [("benchmark", "ceaaf4b003edc1d4"), ("compound", "8c7a87f7517db4a6"), ("images", "ba40e74fda8a9a04")],
)
def test_hosts_of_the_older_sets_keep_their_recipes_labels_and_orders(set_name: str, digest: str) -> None:
    """Whole numbers only, so the digest is the same on every machine."""
    hosts = identify(set_name, range(12))
    found = hashlib.sha256()
    for host, recipe in zip(hosts, recipes_of(hosts), strict=True):
        found.update(repr(_plain(recipe)).encode())
        for part in DataSplit:
            found.update(host_samples(host.key, recipe, part, MlpTrunk.inputs).labels.tobytes())
        found.update(epoch_order(np.array([host.key]), np.array([recipe.samples]), 3).tobytes())
    assert found.hexdigest()[:16] == digest


def _plain(recipe: HostRecipe) -> tuple[object, ...]:
    return recipe.is_linear, recipe.hidden, recipe.samples, recipe.classes, recipe.gain_blocks
