"""What a search tries."""

from __future__ import annotations

import numpy as np

from simic.contracts.controllers import HeuristicRules, Plan, PlannedSeed
from simic.validation.baselines.candidates import (
    BY_HAND,
    extensions,
    plan_like,
    rules_at_random,
    rules_like,
    single_seeds,
)

BLUEPRINTS = ("dropout", "gate", "norm")


def test_every_single_seed_is_in_reach_once_and_none_beyond_the_horizon() -> None:
    plans = single_seeds(20, BLUEPRINTS, 2)
    assert len(plans) == 3 * 2 * 4 * 2
    assert len({plan.model_dump_json() for plan in plans}) == len(plans)
    assert all(seed.epoch < 4 for plan in single_seeds(4, BLUEPRINTS, 2) for seed in plan.seeds)


def test_an_extension_keeps_the_plan_and_adds_a_seed_elsewhere_and_at_another_time() -> None:
    own = PlannedSeed(epoch=1, slot=0, blueprint="gate", alpha_speed=3)
    longer = list(extensions(Plan(seeds=[own]), 20, BLUEPRINTS, 3))
    assert len(longer) == 3 * 2 * 3
    for plan in longer:
        (added,) = [seed for seed in plan.seeds if seed != own]
        assert own in plan.seeds
        assert added.slot in (1, 2)
        assert added.epoch != own.epoch
        assert added.alpha_speed == 3
        assert [seed.epoch for seed in plan.seeds] == sorted(seed.epoch for seed in plan.seeds)
    assert list(extensions(Plan(seeds=[own]), 20, BLUEPRINTS, 1)) == []


def test_the_same_two_seeds_make_one_plan_whichever_came_last() -> None:
    first, second = PlannedSeed(epoch=0, slot=0, blueprint="gate"), PlannedSeed(epoch=2, slot=1, blueprint="norm")
    both = Plan(seeds=[first, second])
    assert both in list(extensions(Plan(seeds=[first]), 20, BLUEPRINTS, 2))
    assert both in list(extensions(Plan(seeds=[second]), 20, BLUEPRINTS, 2))


def test_a_variation_of_a_plan_differs_in_one_value_of_one_seed() -> None:
    generator = np.random.default_rng(0)
    seeds = [PlannedSeed(epoch=1, slot=0, blueprint="gate"), PlannedSeed(epoch=2, slot=2, blueprint="norm")]
    changed = set()
    for _ in range(300):
        varied = plan_like(Plan(seeds=seeds), generator, horizon=7).seeds
        (new,), (old,) = (
            [one for one in some if one not in other] for some, other in ((varied, seeds), (seeds, varied))
        )
        (name,) = [name for name, value in new.model_dump().items() if value != getattr(old, name)]
        changed.add(name)
        assert len({one.epoch for one in varied}) == 2
        assert [one.epoch for one in varied] == sorted(one.epoch for one in varied)
        assert new.epoch < 7
    assert changed == {"epoch", "alpha_speed", "alpha_target"}


def test_rules_are_drawn_from_all_their_values_and_the_same_seed_draws_the_same() -> None:
    drawn, again = (
        [rules_at_random(generator, BLUEPRINTS) for _ in range(300)]
        for generator in (np.random.default_rng(3), np.random.default_rng(3))
    )
    assert drawn == again
    for name in HeuristicRules.model_fields:
        assert len({str(getattr(rules, name)) for rules in drawn}) >= 3, name
    for rules in drawn:
        assert 1 <= len(rules.blueprints) == len(set(rules.blueprints))
        assert set(rules.blueprints) <= set(BLUEPRINTS)
        assert rules.hurts <= rules.keep


def test_similar_rules_differ_in_two_places_at_most() -> None:
    generator = np.random.default_rng(0)
    seen = set()
    for _ in range(300):
        values, old = rules_like(BY_HAND, generator, BLUEPRINTS).model_dump(), BY_HAND.model_dump()
        changed = {name for name in values if values[name] != old[name]}
        assert len(changed - {"hurts"}) <= 2
        seen |= changed
    assert seen == set(HeuristicRules.model_fields)
