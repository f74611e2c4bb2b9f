"""A policy among hosts that know other blueprints: it reads and writes in the hosts' words, and chooses its own."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from support.builders.observations import BLUEPRINTS, Scene, make_scene

from simic.contracts.actions import Op
from simic.contracts.batches import OP_INDEX, Masks
from simic.contracts.errors import ContractError
from simic.controllers.blueprint_mapping import BlueprintMapping, allow_only

HOSTS = ("aside", *BLUEPRINTS[::-1], "beyond")
"""Another order, and two names more."""
MOVED = np.array([HOSTS.index(name) for name in BLUEPRINTS])


def in_other_words(scene: Scene) -> Scene:
    """The same scene as hosts with the vocabulary ``HOSTS`` tell it."""
    planted = scene.observations.slots["blueprint"]
    slots = {**scene.observations.slots, "blueprint": np.where(planted < 0, planted, MOVED[planted]).astype(np.int16)}
    blueprint = np.ones((len(scene.observations), len(HOSTS)), dtype=bool)
    blueprint[:, MOVED] = scene.masks.blueprint
    observations = replace(scene.observations, slots=slots, blueprints=HOSTS)
    return scene._replace(observations=observations, masks=replace(scene.masks, blueprint=blueprint))


def test_the_same_words_are_left_alone() -> None:
    scene, same = make_scene(1, 5), BlueprintMapping(BLUEPRINTS, BLUEPRINTS)
    assert same.to_policy(scene.observations) is scene.observations
    assert same.mask_unknown(scene.masks, scene.observations.slot_ptr) is scene.masks


def test_reading_undoes_another_order() -> None:
    scene, told = make_scene(2, 40), in_other_words(make_scene(2, 40))
    mapping = BlueprintMapping(BLUEPRINTS, HOSTS)
    read = mapping.to_policy(told.observations)
    assert read.blueprints == BLUEPRINTS
    assert np.array_equal(read.slots["blueprint"], scene.observations.slots["blueprint"])
    narrowed = mapping.mask_unknown(told.masks, told.observations.slot_ptr)
    assert np.array_equal(narrowed.blueprint, scene.masks.blueprint)
    assert np.array_equal(narrowed.slot, scene.masks.slot)


def test_a_word_the_hosts_lack_is_never_legal() -> None:
    scene = make_scene(3, 6)
    masks = BlueprintMapping(("aside", *BLUEPRINTS), BLUEPRINTS).mask_unknown(scene.masks, scene.observations.slot_ptr)
    assert not masks.blueprint[:, 0].any()
    assert np.array_equal(masks.blueprint[:, 1:], scene.masks.blueprint)


def test_a_seed_without_a_word_is_refused() -> None:
    told = in_other_words(make_scene(4, 20)).observations
    told.slots["blueprint"][np.flatnonzero(told.slots["blueprint"] >= 0)[2]] = HOSTS.index("beyond")
    with pytest.raises(ContractError, match=r"policy knows blueprints .*hosts hold seeds of \['beyond'\]"):
        BlueprintMapping(BLUEPRINTS, HOSTS).to_policy(told)


def test_a_host_left_without_a_choice_may_not_germinate() -> None:
    scene, germinate = make_scene(5, 60), OP_INDEX[Op.GERMINATE]
    only = np.array([name == BLUEPRINTS[2] for name in BLUEPRINTS])
    masks, ptr = scene.masks, scene.observations.slot_ptr
    before = Masks(masks.op.copy(), masks.slot.copy(), masks.blueprint.copy())
    found = allow_only(masks, only, ptr)
    can = masks.blueprint[:, 2]
    assert 0 < can.sum() < len(can)
    assert not found.op[~can, germinate].any()
    assert not found.slot[np.repeat(~can, np.diff(ptr)), germinate].any()
    others = [index for index in OP_INDEX.values() if index != germinate]
    assert np.array_equal(found.op[:, others], masks.op[:, others])
    assert np.array_equal(found.op[can], masks.op[can])
    assert np.array_equal(found.slot[:, others], masks.slot[:, others])
    assert not found.blueprint[:, ~only].any()
    assert all(np.array_equal(vars(masks)[name], value) for name, value in vars(before).items()), "a copy"
