"""Digits are cut three ways once and for all, and test digits stay unread until an episode is over."""

from __future__ import annotations

import numpy as np
import pytest
from support.builders.ensembles import ensemble, stack, waits

from simic.contracts.errors import DatasetError
from simic.hosts.batched import data
from simic.hosts.batched.data import POOL_SIZES, digit_pool, epoch_order, host_samples
from simic.hosts.batched.dataset import recipes_of
from simic.hosts.batched.sizes import BATCH, SAMPLES, STEPS
from simic.hosts.host_sets import SETS, identify
from simic.hosts.interfaces import DataSplit, HostRecipe
from simic.hosts.plugins import family_names, load_family
from simic.hosts.trunks.mlp import MlpTrunk

FAMILIES = SETS["benchmark"].families
SHOWN = MlpTrunk.inputs


def _recipe(key: int) -> HostRecipe:
    return recipes_of(identify("benchmark", [key]))[0]


def test_l14_three_parts_of_fixed_size_share_no_digit() -> None:
    pools = [digit_pool(part) for part in DataSplit]
    assert [len(pool.labels) for pool in pools] == [900, 450, 447] == list(POOL_SIZES.values())
    rows = np.concatenate([pool.features for pool in pools])
    assert rows.shape == (1797, 16)
    assert len(np.unique(rows, axis=0)) > 1780, "a few images coincide after pooling"


def test_only_the_training_pool_is_standardised_exactly() -> None:
    train, test = digit_pool(DataSplit.TRAIN).features, digit_pool(DataSplit.TEST).features
    assert np.abs(train.mean(axis=0)).max() < 1e-5
    assert np.abs(train.std(axis=0) - 1)[train.std(axis=0) > 0].max() < 1e-5
    assert np.abs(test.mean(axis=0)).max() > 0.01


def test_l14_test_digits_are_not_read_before_the_last_step(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[DataSplit] = []

    def watched(part: DataSplit) -> data.Pool:
        read.append(part)
        return digit_pool(part)

    monkeypatch.setattr(data, "digit_pool", watched)
    grown = ensemble(range(5), horizon=4)
    for _ in range(3):
        grown.step(waits(5))
        grown.observe()
    assert set(read) == {DataSplit.TRAIN, DataSplit.VALIDATION}
    grown.step(waits(5))
    assert DataSplit.TEST in read


@pytest.mark.parametrize("part", DataSplit)
def test_samples_are_the_hosts_own_and_always_the_same(part: DataSplit) -> None:
    first, again, other = (host_samples(key, _recipe(key), part, SHOWN) for key in (3, 3, 8))
    assert all(np.array_equal(ours, theirs) for ours, theirs in zip(first, again, strict=True))
    assert not np.array_equal(first.inputs[:90], other.inputs[:90])
    assert first.inputs[:, -1].tolist() == [1.0] * len(first.labels)
    assert set(first.inputs[:, -2].tolist()) == {-1.0, 1.0}


def test_training_samples_come_from_the_hosts_subset() -> None:
    samples = host_samples(4, _recipe(4), DataSplit.TRAIN, SHOWN)
    pool = {row.tobytes() for row in digit_pool(DataSplit.TRAIN).features}
    assert len(samples.labels) == SAMPLES
    own = {row.tobytes() for row in samples.inputs[:, :16]}
    assert own <= pool
    assert {row.tobytes() for row in samples.inputs[:, 16:32]} <= own, "partners come from the same subset"


def test_noise_touches_training_labels_only_and_always_changes_them() -> None:
    shares = []
    for key in range(3, 103, 5):
        recipe = _recipe(key)
        noisy = host_samples(key, recipe, DataSplit.TRAIN, SHOWN).labels
        clean = host_samples(key, recipe._replace(label_noise=0.0), DataSplit.TRAIN, SHOWN).labels
        shares.append((noisy != clean).mean())
        assert noisy.min() >= 0
        assert noisy.max() < 10
        loud = host_samples(key, recipe._replace(label_noise=1.0), DataSplit.TRAIN, SHOWN).labels
        assert (loud != clean).all()
        validation = host_samples(key, recipe, DataSplit.VALIDATION, SHOWN).labels
        loud = host_samples(key, recipe._replace(label_noise=1.0), DataSplit.VALIDATION, SHOWN)
        assert np.array_equal(validation, loud.labels)
    assert np.mean(shares) == pytest.approx(0.35, abs=0.03)


def test_an_epoch_shows_every_sample_about_equally_often() -> None:
    keys, sizes = np.array([1, 2, 3]), np.array([512, 512, 130])
    order = epoch_order(keys, sizes, 0)
    assert order.shape == (3, STEPS * BATCH)
    assert np.array_equal(np.sort(order[0]), np.arange(512))
    assert set(np.bincount(order[2], minlength=130).tolist()) == {3, 4}
    assert not np.array_equal(order, epoch_order(keys, sizes, 1))


def test_families_are_what_they_say() -> None:
    recipes = {family: [_recipe(5 * i + FAMILIES.index(family)) for i in range(30)] for family in FAMILIES}
    assert set(FAMILIES) <= set(family_names())
    for family in ("cap", "select"):
        assert all(one.is_linear and max(one.hidden) <= 3 for one in recipes[family])
    for family in ("gain", "noisy", "fine"):
        assert all(not one.is_linear and min(one.hidden) >= 12 for one in recipes[family])
    assert {one.gain_blocks for one in recipes["gain"]} == {(0,), (1,)}
    assert all(0.7 <= one.gain_spread <= 1.1 for one in recipes["gain"])
    assert all(0.3 <= one.label_noise <= 0.4 and one.samples < 200 for one in recipes["noisy"])
    assert {one.classes for one in recipes["cap"]} == {4}
    (both,) = recipes_of(identify("compound", [5]))
    assert both.is_linear
    assert both.gain_blocks
    assert max(both.hidden) <= 3
    labels = host_samples(0, recipes["cap"][0], DataSplit.VALIDATION, SHOWN).labels
    assert np.bincount(labels, minlength=4).min() > 60, "all four classes occur"


def test_the_selector_says_which_digit_counts() -> None:
    samples = host_samples(1, _recipe(1), DataSplit.VALIDATION, SHOWN)
    of_a = digit_pool(DataSplit.VALIDATION).labels
    assert (samples.labels == of_a)[samples.inputs[:, 32] < 0].all()
    assert (samples.labels == of_a)[samples.inputs[:, 32] > 0].mean() < 0.2


@pytest.mark.parametrize("broken", [{"samples": 0}, {"samples": 513}, {"hidden": (0, 4)}, {"hidden": (4, 17)}])
def test_a_family_with_an_impossible_recipe_is_refused(
    monkeypatch: pytest.MonkeyPatch, broken: dict[str, object]
) -> None:
    family = load_family("fine")

    class Broken:
        def recipe(self, draws: np.ndarray) -> HostRecipe:
            return family.recipe(draws)._replace(**broken)  # type: ignore[arg-type]

    monkeypatch.setattr("simic.hosts.batched.dataset.load_family", lambda _: Broken())
    with pytest.raises(DatasetError, match="host 4"):
        recipes_of(identify("benchmark", [4]))


def test_evaluation_sets_fill_whole_vectors_and_count_only_real_samples() -> None:
    dataset = stack(ensemble([2, 4])).dataset
    for part, samples in ((part, dataset.evaluation_set(part)) for part in (DataSplit.VALIDATION, DataSplit.TEST)):
        assert samples.inputs.shape[1] % 32 == 0
        assert samples.valid == POOL_SIZES[part]
        assert not samples.inputs[:, samples.valid :].any()
        assert samples.inputs[:, : samples.valid].any(dim=2).all()
