"""Stacked families with trunks of their own: several sizes in one set, and the same bits in any company."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
import torch
from support.builders.ensembles import random_actions

from simic.contracts.controllers import ControllerSpec
from simic.contracts.errors import ConfigError
from simic.contracts.rewards import RewardConfig
from simic.contracts.settings.run import WorldConfig
from simic.hosts.batched.dataset import recipes_of
from simic.hosts.ensemble import Ensemble, StepOutcome
from simic.hosts.host_sets import SETS, host_set, identify
from simic.hosts.mixed_ensemble import MixedEnsemble, ensemble_of
from simic.hosts.plugins import load_family
from simic.validation.host_sizes import host_sizes
from simic.validation.trials import grow_all

FAMILIES = SETS["shapes"].families
HORIZON = 6


def lives(keys: Sequence[int], threads: int = 1, world_set: str = "shapes") -> dict[int, list[bytes]]:
    """Everything that steps and observations show of each host, whose actions its key alone draws."""
    world = WorldConfig(set=world_set, horizon=HORIZON, threads=threads)
    grown = ensemble_of(identify(world_set, keys), world)
    draws = {key: np.random.default_rng(key) for key in keys}
    shown: dict[int, list[bytes]] = {key: [] for key in keys}
    while not grown.is_finished.all():
        masks = grown.masks()
        rows = [
            random_actions(masks.take(np.array([row]), grown.observe().slot_ptr), draws[key].random((1, 7)), 0.1)[0]
            for row, key in enumerate(keys)
        ]
        outcome: StepOutcome = grown.step(np.stack(rows))
        observed = grown.observe()
        for row in np.flatnonzero(outcome.live):  # the governor may end the episode of a host before that of others
            key = keys[row]
            own = observed.take(np.array([row]))
            shown[key] += [column[row].tobytes() for column in outcome if isinstance(column, np.ndarray)]
            shown[key] += [column.tobytes() for part in (own.system, own.layers, own.slots) for column in part.values()]
    return shown


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize(
    ("world_set", "keys"), [("shapes", [7, 3, 0, 11, 8, 5, 13, 20]), ("maps", [3, 8, 5, 12, 17, 14])]
)
def test_bits_do_not_depend_on_neighbours_or_threads(threads: int, world_set: str, keys: list[int]) -> None:
    """The host of key 3 of `shapes` has the only seed of its batch: no library may split that product.

    Of the hosts that are compared all others share their batch with one more of their family.
    """
    families = [host.family for host in identify(world_set, keys)]
    alone = [key for key, family in zip(keys, families, strict=True) if families.count(family) == 1]
    assert set(alone).intersection(keys[:3]) == ({3} if world_set == "shapes" else set())
    together = lives(keys, threads, world_set)
    for key in keys[:3]:
        assert lives([key], world_set=world_set) == {key: together[key]}


def test_families_have_the_sizes_that_they_name() -> None:
    for name in FAMILIES:
        width, blocks = (int(size) for size in name.split("_")[1].split("x"))
        grown = Ensemble(identify(name, [5]), WorldConfig(set=name, horizon=4))
        observed = grown.observe()
        assert observed.layers["width"].tolist() == [width] * (1 + blocks) + [10]
        assert observed.slot_ptr.tolist() == [0, 1 + blocks]
        has_hidden_units = np.isfinite(observed.layers["hidden_width"]).any()
        assert has_hidden_units == name.startswith("residual")


@pytest.mark.parametrize("name", SETS["maps"].families)
def test_convolutional_families_have_the_sizes_and_the_head_that_they_name(name: str) -> None:
    kind, *_, size = name.split("_")
    channels, blocks = (int(part) for part in size.split("x"))
    trunk = load_family(name).trunk
    assert [(site.width, site.space) for site in trunk.topology.sites] == [(channels, (4, 4))] * (1 + blocks)
    assert trunk.parts[-1].shape == (10, channels * (16 if kind == "conv" else 1))


def test_several_families_are_one_ensemble_and_each_has_its_own_parameters() -> None:
    hosts = identify("shapes", [1, 2, 15])
    world = WorldConfig(set="shapes")
    assert isinstance(ensemble_of(hosts, world), MixedEnsemble)
    # A plain host of 10 features and one block: 34 x 10 + 10 x 10 + 10 x 10; the same family again at key 15.
    sizes = host_sizes(hosts, world).parameters
    assert [host.family for host in hosts] == ["plain_6x2", "plain_10x1", "plain_10x1"]
    assert sizes.tolist() == [34 * 6 + 2 * 36 + 60, 540, 540]
    with pytest.raises(ConfigError, match="one batch per family, found plain_10x1, plain_6x2"):
        Ensemble(hosts, world)


def test_most_hosts_lack_most_causes_and_every_cause_occurs() -> None:
    recipes = recipes_of(identify("shapes", range(600)))
    causes = ("label_noise", "decay", "column_spread", "imbalance", "gain_spread")
    values = np.array([[getattr(recipe, cause) for recipe in recipes] for cause in causes])
    assert (values >= 0).all()
    absent = values == 0
    assert 0.42 < absent[0].mean() < 0.54, "wrong labels in about half"
    assert ((absent[1:].mean(1) > 0.7) & (absent[1:].mean(1) < 0.9)).all()
    assert 0.15 < (absent.sum(0) == len(causes)).mean() < 0.3, "none of them"
    assert 0.4 < (absent.sum(0) == len(causes) - 1).mean() < 0.6, "one of them"


def test_a_third_of_the_hosts_see_no_second_image_and_another_third_a_fainter_one() -> None:
    factors = np.array([recipe.distraction for recipe in recipes_of(identify("maps", range(600)))])
    assert 0.24 < (factors == 0).mean() < 0.34, "two in five of those whose label does not read it"
    assert 0.24 < ((factors > 0) & (factors < 1)).mean() < 0.34


@pytest.mark.parametrize(("world_set", "is_offered"), [("maps", True), ("shapes", False)])
def test_maps_offer_convolutions_and_shapes_do_not(world_set: str, is_offered: bool) -> None:
    grown = ensemble_of(identify(world_set, [1, 4]), WorldConfig(set=world_set))
    names, legal = grown.observe().blueprints, grown.masks().blueprint
    for name in ("conv3x3", "depthwise"):
        assert (name in names and bool(legal[:, names.index(name)].all())) == is_offered


def test_a_pooled_head_reads_the_mean_of_every_channel() -> None:
    trunk = load_family("pooled_6x1").trunk(recipes_of(identify("pooled_6x1", [4])))
    draw = torch.Generator().manual_seed(4)
    x = torch.randn(3, 5, 4, 4, 6, requires_grad=True, generator=draw)
    mean = x.flatten(2, 3).mean(2)
    assert torch.allclose(trunk.read(x), mean, atol=1e-6)
    above = torch.randn(3, 5, 6, generator=draw)
    (gradient,) = torch.autograd.grad(mean, x, above)
    assert torch.allclose(trunk.spread(above, x.shape), gradient)


def test_a_family_with_a_trunk_of_its_own_is_a_set_too() -> None:
    assert host_set("plain_6x2").is_mixed
    assert not host_set("cap").is_mixed
    assert load_family("plain_6x2").trunk.topology.widths == (6, 6, 6, 10)


def test_trials_return_each_host_its_own_episode() -> None:
    """Hosts of one family are grown together; the episodes come back in the order of the hosts."""
    world = WorldConfig(set="shapes", horizon=4, chunk=3, workers=1)
    specs = {"random": ControllerSpec(name="random")}
    hosts = identify("shapes", [12, 0, 3, 13, 25])
    together = grow_all(specs, hosts, world, RewardConfig(), 1, None)["random"]
    for row, host in enumerate(hosts):
        alone = grow_all(specs, [host], world, RewardConfig(), 1, None)["random"]
        assert alone.returns[0] == together.returns[row]
        assert alone.test_accuracy[0] == together.test_accuracy[row]
