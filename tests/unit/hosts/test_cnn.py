"""What a convolutional host is shown, how wide it is, and that seeds can do something for it."""

from __future__ import annotations

import numpy as np
import torch
from support.builders.ensembles import action, ensemble, stack, step_with, waits

from simic.contracts.actions import Op
from simic.hosts.batched.data import digit_pool, host_samples
from simic.hosts.batched.dataset import recipes_of
from simic.hosts.host_sets import SETS, identify
from simic.hosts.interfaces import DataSplit
from simic.hosts.plugins import blueprint_names
from simic.hosts.trunks.cnn import CHANNELS, CnnTrunk

KEYS = range(10)


def test_inputs_hold_every_pixel_of_both_images_once_and_the_selector() -> None:
    recipe = recipes_of(identify("images", [4]))[0]
    samples = host_samples(4, recipe, DataSplit.VALIDATION, CnnTrunk.inputs)
    assert samples.inputs.shape == (450, 4, 4, 10)
    images = digit_pool(DataSplit.VALIDATION).images
    for pixel in range(4):
        row, column = divmod(pixel, 2)
        assert np.array_equal(samples.inputs[..., pixel], images[:, row::2, column::2])
    known = {one.tobytes() for one in images}
    other = samples.inputs[..., 4:8].reshape(450, 4, 4, 2, 2).swapaxes(2, 3).reshape(450, 8, 8)
    assert {one.tobytes() for one in np.ascontiguousarray(other)} <= known
    assert set(samples.inputs[..., 8].ravel().tolist()) == {-1.0, 1.0}
    assert (samples.inputs[..., 8] == samples.inputs[:, :1, :1, 8]).all()
    assert (samples.inputs[..., 9] == 1.0).all()


def test_two_hidden_units_of_a_recipe_are_one_channel_and_the_others_stay_dead() -> None:
    grown = ensemble(KEYS, world_set="images")
    recipes = recipes_of(identify("images", KEYS))
    hidden = grown.observe().layers["hidden_width"].reshape(len(KEYS), 4)[:, 1:3]
    assert hidden.tolist() == [[-(-units // 2) for units in recipe.hidden] for recipe in recipes]
    assert hidden.min() >= 1
    assert hidden.max() <= 8
    for _ in range(2):
        grown.step(waits(len(KEYS)))
    _, *blocks, _ = stack(grown).weights.parts
    for block, (kernel, matrix) in enumerate(zip(blocks[::2], blocks[1::2], strict=True)):
        alive = torch.arange(8) < torch.from_numpy(hidden[:, block, None])
        assert torch.equal(kernel.flatten(1, 3).any(dim=1), alive)
        assert torch.equal(matrix.any(dim=2), alive)


def test_only_a_linear_stem_lets_negative_numbers_through() -> None:
    hosts = stack(ensemble(KEYS, world_set="images"))
    state = hosts.trunk.stem(hosts.weights.parts, hosts.dataset.validation.inputs)
    assert state.shape[2:] == (4, 4, CHANNELS)
    is_linear = [recipe.is_linear for recipe in hosts.dataset.recipes]
    assert (state.flatten(1).amin(dim=1) < 0).tolist() == is_linear
    assert any(is_linear)
    assert not all(is_linear)


def test_hosts_learn_and_a_few_seeds_of_every_blueprint_learn_beside_them() -> None:
    grown = ensemble(KEYS, world_set="images")
    offered = [blueprint_names().index(name) for name in SETS["images"].blueprints]
    first = grown.observe().system["validation_accuracy"]
    rows = [action(Op.GERMINATE, slot=host % 3, blueprint=offered[host % len(offered)], tempo=2) for host in KEYS]
    step_with(grown, *rows)
    for _ in range(3):
        grown.step(waits(len(KEYS)))
    system, slots = grown.observe().system, grown.observe().slots
    assert (system["validation_accuracy"] - first).mean() > 0.2
    mine = slots["blueprint"] >= 0
    has_parameters = slots["parameters"][mine] > 0
    assert (slots["gradient_norm"][mine][has_parameters] > 0).all()
    assert (slots["gradient_health"][mine][has_parameters] == 1).all()
