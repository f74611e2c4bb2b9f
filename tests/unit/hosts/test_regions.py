"""Regions draw every cause from a range; hosts of the older sets keep their samples and orders."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from simic.contracts.errors import DatasetError
from simic.contracts.state import HostIdentity
from simic.hosts.batched.data import HostSamples, digit_pool, epoch_order, host_samples
from simic.hosts.batched.dataset import recipes_of
from simic.hosts.batched.host_batch import CompactedHosts
from simic.hosts.families._region import Region
from simic.hosts.host_sets import SETS, STANDARD, identify
from simic.hosts.interfaces import DataSplit, HostRecipe, Pairs, SeedAssignment
from simic.hosts.plugins import load_blueprint, load_family
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
    for limits, values in (
        (region.rate, (recipe.rate,)),
        (region.decay, (recipe.decay,)),
        (region.layer_scales, recipe.layer_scales),
        (region.column_spread, (recipe.column_spread,)),
        (region.imbalance, (recipe.imbalance,)),
    ):
        assert all(limits[0] - 1e-9 <= value <= limits[1] + 1e-9 for value in values)
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


def _training(key: int = 3, **causes: float) -> HostSamples:
    recipe = Region(samples=(120, 120)).recipe(np.full(24, 0.5))._replace(**causes)  # type: ignore[arg-type]
    return host_samples(key, recipe, DataSplit.TRAIN, MlpTrunk.inputs)


def test_scaled_columns_change_inputs_by_one_factor_each_and_no_label() -> None:
    plain, scaled = _training(), _training(column_spread=1.5)
    assert np.array_equal(plain.labels, scaled.labels)
    assert np.array_equal(plain.inputs[:, 32:], scaled.inputs[:, 32:]), "selector and bias keep their scale"
    with np.errstate(invalid="ignore", divide="ignore"):
        ratio = scaled.inputs[:, :32] / plain.inputs[:, :32]
    factors = np.nanmedian(ratio, axis=0)
    assert np.nanmax(np.abs(ratio / factors - 1)) < 1e-5
    assert np.exp(-1.5) <= np.nanmin(factors) < 0.6
    assert 1.6 < np.nanmax(factors) <= np.exp(1.5)
    other = _training(4, column_spread=1.5).inputs[:, :32] / _training(4).inputs[:, :32]
    assert not np.allclose(np.nanmedian(other, axis=0), factors, equal_nan=True), "every host has its own"


def test_pixels_have_the_factor_of_the_feature_they_were_pooled_into() -> None:
    recipe = Region().recipe(np.full(24, 0.5))._replace(column_spread=1.0)
    plain, scaled = (
        host_samples(5, one, DataSplit.VALIDATION, lambda pairs: pairs.image_a)
        for one in (recipe._replace(column_spread=0.0), recipe)
    )
    features = [
        host_samples(5, one, DataSplit.VALIDATION, lambda pairs: pairs.a).inputs
        for one in (recipe._replace(column_spread=0.0), recipe)
    ]
    with np.errstate(invalid="ignore", divide="ignore"):
        pixels = np.nanmedian(scaled.inputs / plain.inputs, axis=0)
        pooled = np.nanmedian(features[1] / features[0], axis=0).reshape(4, 4)
    known = np.isfinite(pooled)
    assert np.allclose(pixels[::2, ::2][known], pooled[known], rtol=1e-5)
    assert np.allclose(pixels[1::2, 1::2][known], pooled[known], rtol=1e-5)


def test_a_faded_second_image_leaves_the_first_and_all_labels() -> None:
    recipe = Region().recipe(np.full(24, 0.5))
    assert recipe.distraction == 1.0
    whole, faded = (
        host_samples(5, recipe._replace(distraction=factor), DataSplit.TEST, lambda pairs: pairs) for factor in (1, 0.5)
    )
    assert np.array_equal(whole.labels, faded.labels)
    for name in ("a", "image_a", "selector"):
        assert np.array_equal(getattr(whole.inputs, name), getattr(faded.inputs, name))
    for name in ("b", "image_b"):
        assert np.array_equal(0.5 * getattr(whole.inputs, name), getattr(faded.inputs, name))


@pytest.mark.parametrize("cause", [{"selecting": 1.0}, {"products": 1.0}])
def test_the_second_image_stays_whole_where_it_decides_labels(cause: dict[str, float]) -> None:
    region = Region(distraction=(0.0, 0.5))
    assert region.recipe(np.full(24, 0.5)).distraction == 0.25
    assert region._replace(**cause).recipe(np.full(24, 0.5)).distraction == 1.0


def test_imbalance_thins_classes_of_training_images_and_of_no_others() -> None:
    even, skewed = (np.bincount(_training(imbalance=value).labels, minlength=10) for value in (0.0, 4.0))
    assert even.sum() == skewed.sum() == 120
    assert even.min() > 4
    assert skewed.max() > 1.5 * even.max()
    assert skewed.min() <= 2
    recipe = Region().recipe(np.full(24, 0.5))
    labels = [host_samples(3, recipe._replace(imbalance=value), DataSplit.VALIDATION, MlpTrunk.inputs).labels
              for value in (0.0, 4.0)]  # fmt: skip
    assert np.array_equal(*labels)


@pytest.mark.parametrize(
    "broken",
    [{"rate": 0.0}, {"decay": -0.1}, {"layer_scales": (1.0, 0.0, 1.0, 1.0)}, {"column_spread": -1.0},
     {"imbalance": float("nan")}, {"distraction": 1.5}, {"distraction": float("nan")}],
)  # fmt: skip
def test_an_impossible_cause_is_refused(monkeypatch: pytest.MonkeyPatch, broken: dict[str, object]) -> None:
    class Broken:
        def recipe(self, draws: np.ndarray) -> HostRecipe:
            return Region().recipe(draws)._replace(**broken)  # type: ignore[arg-type]

    monkeypatch.setattr("simic.hosts.batched.dataset.load_family", lambda _: Broken())
    with pytest.raises(DatasetError, match="family region_few, host 4"):
        recipes_of(identify("varied", [4]))


def _grown(hosts: Sequence[HostIdentity]) -> CompactedHosts:
    """Hosts after two epochs, one seed learning in isolation and then felt in each of the first four."""
    blueprints = [load_blueprint(name) for name in STANDARD]
    grown = CompactedHosts(hosts, blueprints, MlpTrunk)
    blueprint, alpha = np.full((len(hosts), 3), -1, dtype=np.int16), np.zeros((len(hosts), 3), dtype=np.float32)
    for host in range(4):
        blueprint[host, host % 3] = host
        grown.germinate(host, host % 3, 1, host)
    for epoch in range(2):
        grown.train(SeedAssignment(blueprint, alpha, (blueprint >= 0) & (epoch == 0)), epoch)
        alpha[blueprint >= 0] = 0.7
    return grown


def test_hosts_without_the_new_causes_have_the_same_bits_beside_hosts_with_them() -> None:
    """Alone they take the path without weight decay and gains, together the path with both."""
    plain = identify("benchmark", [0, 1, 3, 4, 5, 6])
    alone, beside = _grown(plain), _grown([*plain, *identify("varied", range(10))])
    assert alone.sizes.kept is None
    assert beside.sizes.kept is not None
    for mine, theirs in zip(
        (*alone.weights.parts, *alone.momentum.parts, *alone.seeds),
        (*beside.weights.parts, *beside.momentum.parts, *beside.seeds),
        strict=True,
    ):
        assert torch.equal(mine, theirs[: len(plain)])


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
