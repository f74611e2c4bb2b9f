"""Candidates of the plan search: fixed plans, longer plans made of shorter ones, and rules for the heuristic."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product
from typing import Any

import numpy as np

from simic.contracts.actions import ALPHA_SPEEDS, ALPHA_TARGETS
from simic.contracts.controllers import HeuristicRules, Plan, PlannedSeed
from simic.contracts.settings.run import WorldConfig
from simic.hosts.host_sets import host_set, identify
from simic.hosts.mixed_ensemble import ensemble_of

__all__ = [
    "BY_HAND",
    "HEADROOM_EPOCHS",
    "extensions",
    "plan_like",
    "rules_at_random",
    "rules_like",
    "shorter",
    "single_seeds",
    "single_seeds_of",
]

GERMINATION_EPOCHS = (0, 1, 2, 4)
RAMP_EPOCHS = (0, 3)
HEADROOM_EPOCHS = (1, 4)
"""Epochs at which the seed of ``single_seeds_of`` germinates."""

_SEED_CHOICES: dict[str, tuple[Any, ...]] = {
    "epoch": (0, 1, 2, 3, 4, 6, 8),
    "alpha_speed": ALPHA_SPEEDS,
    "alpha_target": ALPHA_TARGETS,
}
"""Values that a variation of a plan may give to one of its seeds."""

BY_HAND = HeuristicRules()
"""The default rules."""
_CHOICES: dict[str, tuple[Any, ...]] = {
    "window": (0, 1, 2, 4),
    "plateau": (0.0, 0.01, 0.02, 0.05, 1.0),
    "falls": (0.03, 0.05, 0.1, 1.0),
    "keep": (0.0, 0.005, 0.01, 0.02, 0.04),
    "hurts": (-0.05, -0.02, 0.0, 0.01, 0.02),
    "patience": (1, 2, 3, 5),
    "first_epoch": (0, 1, 2, 4),
    "time_needed": (5, 8, 12),
    "blueprint_epochs": (1, 3, 5, 7),
    "slot_epochs": (1, 3, 5),
    "alpha_speed": ALPHA_SPEEDS[:3],
}
"""Values tried for each rule, except the order of blueprints."""


def single_seeds(horizon: int, blueprints: Sequence[str], slots: int) -> list[Plan]:
    """Return every plan of one seed: blueprint x slot x germination epoch x ramp."""
    seeds = product(blueprints, range(slots), GERMINATION_EPOCHS, RAMP_EPOCHS)
    return [
        Plan(seeds=[PlannedSeed(epoch=epoch, slot=slot, blueprint=blueprint, alpha_speed=ramp)])
        for blueprint, slot, epoch, ramp in seeds
        if epoch < horizon
    ]


def single_seeds_of(world: WorldConfig) -> list[Plan]:
    """Return every plan of one seed, blueprint x slot x epoch, that all families allow; the plans of the headroom."""
    shown = ensemble_of(identify(world.set, range(len(host_set(world.set).families))), world)
    seen, offered = shown.observe(), shown.masks().blueprint.T
    names = [name for name, legal in zip(seen.blueprints, offered, strict=True) if legal.all()]
    return [
        Plan(seeds=[PlannedSeed(epoch=epoch, slot=slot, blueprint=name)])
        for name, slot, epoch in product(names, range(int(np.diff(seen.slot_ptr).max())), HEADROOM_EPOCHS)
        if epoch < world.horizon
    ]


def extensions(plan: Plan, horizon: int, blueprints: Sequence[str], slots: int) -> Iterator[Plan]:
    """Return the plan with one more seed, in another slot and at another epoch, with the ramp of the first seed.

    Seeds are sorted by epoch, so a plan does not depend on the order in which seeds were added.
    """
    slots_taken = {seed.slot for seed in plan.seeds}
    epochs_taken = {seed.epoch for seed in plan.seeds}
    ramp = plan.seeds[0].alpha_speed if plan.seeds else RAMP_EPOCHS[0]
    for blueprint, slot, epoch in product(blueprints, range(slots), GERMINATION_EPOCHS):
        if slot not in slots_taken and epoch not in epochs_taken and epoch < horizon:
            new = PlannedSeed(epoch=epoch, slot=slot, blueprint=blueprint, alpha_speed=ramp)
            yield _by_epoch([*plan.seeds, new])


def shorter(plan: Plan) -> Iterator[Plan]:
    """Yield one plan for each seed: the same plan without that seed."""
    for left_out in plan.seeds:
        yield Plan(seeds=[seed for seed in plan.seeds if seed != left_out])


def plan_like(plan: Plan, generator: np.random.Generator, horizon: int) -> Plan:
    """Return a plan of at least one seed with another epoch, ramp or alpha for one of its seeds."""
    seed = _one_of(generator, plan.seeds)
    others = [other for other in plan.seeds if other.slot != seed.slot]
    name = _one_of(generator, list(_SEED_CHOICES))
    excluded = {getattr(seed, name)}
    if name == "epoch":
        excluded |= {other.epoch for other in others} | {epoch for epoch in _SEED_CHOICES[name] if epoch >= horizon}
    values = [value for value in _SEED_CHOICES[name] if value not in excluded]
    changed = seed.model_copy(update={name: _one_of(generator, values)} if values else {})
    return _by_epoch([*others, changed])


def rules_at_random(generator: np.random.Generator, blueprints: Sequence[str]) -> HeuristicRules:
    """Return rules drawn at random from the tried values, with a random selection and order of blueprints."""
    values = {name: _one_of(generator, choices) for name, choices in _CHOICES.items()}
    return _sound({**values, "blueprints": _some(generator, blueprints)})


def rules_like(rules: HeuristicRules, generator: np.random.Generator, blueprints: Sequence[str]) -> HeuristicRules:
    """Return the rules with two of them changed; half of the time one is the order of blueprints."""
    values = rules.model_dump()
    changed = generator.choice(len(_CHOICES), size=2, replace=False)
    names = [list(_CHOICES)[index] for index in changed.tolist()]
    values |= {name: _one_of(generator, _CHOICES[name]) for name in names}
    if generator.random() < 0.5:
        values[names[0]] = getattr(rules, names[0])
        values["blueprints"] = _reordered(generator, rules.blueprints or blueprints, blueprints)
    return _sound(values)


def _by_epoch(seeds: list[PlannedSeed]) -> Plan:
    return Plan(seeds=sorted(seeds, key=lambda seed: seed.epoch))


def _one_of(generator: np.random.Generator, choices: Sequence[Any]) -> Any:
    return choices[int(generator.integers(len(choices)))]


def _some(generator: np.random.Generator, blueprints: Sequence[str]) -> list[str]:
    order = generator.permutation(len(blueprints)).tolist()
    return [blueprints[index] for index in order[: 1 + int(generator.integers(len(blueprints)))]]


def _reordered(generator: np.random.Generator, order: Sequence[str], blueprints: Sequence[str]) -> list[str]:
    """Return the blueprints with one removed, one added, or both, at any position."""
    names = list(order)
    way = int(generator.integers(3))
    if way != 0 and len(names) > 1:
        names.pop(int(generator.integers(len(names))))
    absent = [name for name in blueprints if name not in names]
    if way != 1 and absent:
        names.insert(int(generator.integers(len(names) + 1)), _one_of(generator, absent))
    return names


def _sound(values: dict[str, Any]) -> HeuristicRules:
    """Return whether no seed would be both kept and removed."""
    return HeuristicRules(**{**values, "hurts": min(values["hurts"], values["keep"])})
