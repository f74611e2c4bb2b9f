"""The controllers of a comparison, and their names."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from simic.app.container import Container
from simic.contracts.controllers import SEARCHED, TRIAL_CONTROLLERS, ControllerSpec, PlanBook
from simic.contracts.errors import ConfigError
from simic.contracts.names import CHAMPION
from simic.controllers.plans import symptom_tree
from simic.validation.baselines.plan_book import (
    NO_BOOK,
    PLAN_CONTROLLERS,
    REQUIRES_PLAN_BOOK,
    BookUse,
    book_of,
    book_use,
    current_book,
    spec_without_book,
)

__all__ = ["SelectedControllers", "select_controllers", "spec_in_set"]


class SelectedControllers(NamedTuple):
    """The controllers of one comparison."""

    specs: dict[str, ControllerSpec]
    """Specs by name of the row."""
    book: BookUse = NO_BOOK


def select_controllers(container: Container, controllers: Sequence[str] | None) -> SelectedControllers:
    """Return the named controllers and arms that search.

    By default those of ``TRIAL_CONTROLLERS`` that the set and the home allow.

    Raises:
        ConfigError: if a named controller needs a plan book, or a tree in it, that is missing, or the book is out of
            date.
    """
    names = list(dict.fromkeys(TRIAL_CONTROLLERS if controllers is None else controllers))
    if controllers is None and CHAMPION in names and container.policies.champion_digest() is None:
        names.remove(CHAMPION)
    is_named = controllers is not None and bool(REQUIRES_PLAN_BOOK & set(names))
    book = _book(container, is_named=is_named) if PLAN_CONTROLLERS & set(names) else None
    use = book_use(names, book, container.config.world, container.config.curate.reward.basic)
    if is_named and use.without_book and book is not None:
        symptom_tree(book, container.config.world.images)
    names = [name for name in names if name not in REQUIRES_PLAN_BOOK & set(use.without_book)]
    specs: dict[str, ControllerSpec] = {}
    for name in names:
        if name in SEARCHED:
            specs[name] = ControllerSpec(name=name)
            continue
        spec = container.policies.spec(name, is_decisive=True)
        spec = spec if book is not None else spec_without_book(spec)
        specs[container.policies.label(name, spec)] = spec
    return SelectedControllers(specs, use)


def spec_in_set(container: Container, name: str) -> ControllerSpec:
    """Return a deterministic controller by name; without a plan book the heuristic follows its default rules.

    Raises:
        ConfigError: as ``select_controllers`` does, and for an arm that searches.
    """
    if name in SEARCHED:
        raise ConfigError(f"{name!r} is no controller: it chooses by the ends of episodes; `simic trials` compares it")
    return next(iter(select_controllers(container, [name]).specs.values()))


def _book(container: Container, *, is_named: bool) -> PlanBook | None:
    world, plans = container.config.world, container.home.plans
    if is_named:
        return current_book(world.set, plans, world.images)
    return book_of(world.set, plans, is_required=False, images=world.images)
