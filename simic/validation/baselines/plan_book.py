"""The plan book of a set: whether it is up to date with the code of the hosts, and how it is stored."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from simic.contracts.base import Contract
from simic.contracts.controllers import CONTROLLER_ORDER, ControllerSpec, HeuristicRules, PlanBook
from simic.contracts.errors import ConfigError
from simic.contracts.names import BLIND, HEURISTIC, ORACLE, SYMPTOM
from simic.contracts.results.gate import GateDecision
from simic.contracts.rewards import RewardConfig
from simic.contracts.settings.run import WorldConfig
from simic.controllers.plans import book_path, load_plans, search_command, tree_command
from simic.hosts.host_sets import SETS, host_set
from simic.hosts.set_sources import set_sources
from simic.runtime.code_version import tree_digest
from simic.runtime.files import atomic_write
from simic.trust.canonical import digest_of

__all__ = [
    "NO_BOOK",
    "PLAN_BOOK",
    "PLAN_CONTROLLERS",
    "REQUIRES_PLAN_BOOK",
    "BookUse",
    "as_searched",
    "book_differences",
    "book_of",
    "book_use",
    "current_book",
    "lacks_book",
    "missing_book_message",
    "other_game_message",
    "pictures_of",
    "requires_book",
    "searched_world",
    "spec_without_book",
    "without_book",
    "write_book",
]

REQUIRES_PLAN_BOOK = frozenset({BLIND, SYMPTOM, ORACLE, "expert"})
"""Controllers that follow the plans of a book and cannot act without one."""
PLAN_CONTROLLERS = REQUIRES_PLAN_BOOK | {HEURISTIC}
"""Controllers that use a plan book; the heuristic also has default rules."""
PLAN_BOOK = "plan_book"
"""Criterion: whether the baselines follow a plan book, 1 or 0."""


_SETTINGS = ("horizon", "prune_epochs", "blend", "lifecycle", "governor")
"""Settings of the world that decide which plan is best, besides the set."""
_PRICES = tuple(name for name in RewardConfig.model_fields if name != "family")
_USUAL = (0, "own")
"""Defaults of ``world.prune_epochs`` and ``world.blend``."""
_DEPENDS_ON = (
    "contracts/lifecycle.py",
    "numerics/rewards.py",
    "controllers/plugins/heuristic.py",
    "controllers/schedule_controller.py",
)


def searched_world(world: WorldConfig, reward: RewardConfig) -> str:
    """Return the digest of all inputs of a search: code of its hosts, lifecycle and rules, the set, and the settings.

    A new family or a new set changes no digest of other sets.
    ``prune_epochs`` and ``blend`` count unless they have their defaults, with which the shipped books were searched.
    """
    package = Path(__file__).resolve().parents[2]
    removal = (world.prune_epochs, world.blend)
    others = {} if removal == _USUAL else {"prune_epochs": world.prune_epochs, "blend": world.blend}
    return digest_of(
        {
            "hosts": tree_digest(package, (*set_sources(world.set), *_DEPENDS_ON)),
            "set": [world.set, *SETS.get(world.set, ())],
            "horizon": world.horizon,
            "reward": reward.model_dump(mode="json"),
            "rules": world.rules,
            **others,
        }
    )


def as_searched(book: PlanBook, world: WorldConfig | None = None) -> WorldConfig:
    """Return a world with the set and the settings of the search."""
    return (world or WorldConfig()).model_copy(update={name: getattr(book, name) for name in ("set", *_SETTINGS)})


def current_book(set_name: str, plans: Path | None = None, images: str | None = None) -> PlanBook:
    """Return the book of a set, searched on the present hosts; ``plans`` is the home's folder of books.

    Raises DatasetError for ``images`` (the user's ``world.images``) that cannot be read, else ConfigError for a missing
    or outdated book. An outdated book of the home is not replaced by a shipped one, or by none, because that would
    change the judgement without the user's knowledge. A book may have been searched with other settings than a run
    has; ``book_differences`` names them, and the gate rejects.
    """
    pictures = pictures_of(set_name, images)
    book = load_plans(set_name, plans, images)
    now = searched_world(as_searched(book), book.reward)
    for what, searched, present in (
        ("hosts", book.world_digest, now),
        ("pictures", book.pictures_digest, pictures),
    ):
        if searched != present:
            raise ConfigError(
                f"the plan book of set {set_name!r} ({book_path(set_name, plans)}) was searched on other {what} "
                f"({_short(searched)}) than these ({_short(present)}), so its plans and rules need not be the best; "
                f"run `{search_command(set_name, images)}`"
            )
    return book


def pictures_of(set_name: str, images: str | None) -> str | None:
    """Return the digest of ``world.images`` if hosts of the set read them; None means the digits, or no pictures.

    Raises DatasetError for images that cannot be read, whichever the set is.
    """
    if images is None:
        return None
    from simic.hosts.batched.images import pictures_digest  # loads torch

    digest = pictures_digest(images)
    return digest if host_set(set_name).has_pictures else None


def _short(digest: str | None) -> str:
    return "digits" if digest is None else digest[:12]


def book_differences(book: PlanBook | None, world: WorldConfig, reward: RewardConfig) -> list[str]:
    """Return the settings of a run that differ from those of the search, such as "world.horizon 10 instead of 20".

    With another value of them, the plans and rules of the book need not be the best. Empty without a book.
    """
    if book is None:
        return []
    settings = list(_side_by_side("world", _SETTINGS, book, world))
    settings += _side_by_side("curate.reward", _PRICES, book.reward, reward)
    return [f"{name} {run} instead of {searched}" for name, searched, run in settings if run != searched]


def _side_by_side(section: str, names: Collection[str], one: Any, other: Any) -> Iterator[tuple[str, Any, Any]]:
    """Yield dotted name and both values of each setting, also of sections within the section."""
    for name in names:
        values = getattr(one, name), getattr(other, name)
        if isinstance(values[0], Contract):
            yield from _side_by_side(f"{section}.{name}", type(values[0]).model_fields, *values)
        else:
            yield f"{section}.{name}", *values


def requires_book(set_name: str, *, is_asked: bool) -> bool:
    """Return whether a set is judged only with a plan book: most shipped sets and families, others if asked."""
    return is_asked or (_is_shipped(set_name) and host_set(set_name).needs_book)


def _is_shipped(set_name: str) -> bool:
    families = Path(__file__).resolve().parents[2] / "hosts" / "families"
    return set_name in SETS or (families / f"{set_name}.py").is_file()


def book_of(set_name: str, plans: Path | None, *, is_required: bool, images: str | None = None) -> PlanBook | None:
    """Return the current book of a set; None only if it has none and needs none (``requires_book``).

    Raises ConfigError for a missing book that is required, and for an outdated one, as ``current_book`` does.
    """
    if book_path(set_name, plans) is None and not requires_book(set_name, is_asked=is_required):
        return None
    return current_book(set_name, plans, images)


def spec_without_book(spec: ControllerSpec) -> ControllerSpec:
    """Return the controller for a set without a plan book: the heuristic follows its default rules."""
    return spec.model_copy(update={"rules": HeuristicRules()}) if spec.name == HEURISTIC else spec


def without_book(names: Sequence[str], book: PlanBook | None) -> list[str]:
    """Return those of the controllers that a missing book, or a book without a tree, leaves out or changes."""
    if book is None:
        return [name for name in names if name in PLAN_CONTROLLERS]
    return [SYMPTOM] if SYMPTOM in names and book.symptom is None else []


class BookUse(NamedTuple):
    """The plan book that the controllers of a report follow: its digest, and where it is missing or differs."""

    plans_digest: str | None = None
    """Digest of the plan book that some of them follow."""
    without_book: Sequence[str] = ()
    """Consequences of a missing plan book or tree: controllers left out, and the heuristic on its default rules."""
    book_differences: Sequence[str] = ()
    """Settings in which the run differs from those that the plan book was searched with."""


NO_BOOK = BookUse()
"""The use of a book in a report of controllers that need none."""


def book_use(names: Sequence[str], book: PlanBook | None, world: WorldConfig, reward: RewardConfig) -> BookUse:
    """Return how these controllers use the book of their set, or how they do without one."""
    digest = None if book is None else digest_of(book)
    return BookUse(digest, without_book(names, book), book_differences(book, world, reward))


def missing_book_message(set_name: str, without_book: Collection[str], images: str | None = None) -> str:
    """Return one sentence on the consequences of a missing plan book and how to make one; empty if there are none.

    A book without a tree leaves out ``symptom`` alone.
    """
    if set(without_book) == {SYMPTOM}:
        command = tree_command(set_name, images)
        return f"no tree in the plan book of set {set_name}: no comparison with {SYMPTOM}; `{command}` adds it"
    left_out = [name for name in CONTROLLER_ORDER if name in REQUIRES_PLAN_BOOK & set(without_book)]
    parts = [f"{HEURISTIC} follows its default rules"] if HEURISTIC in without_book else []
    parts += [f"no comparison with {_enumeration(left_out)}"] if left_out else []
    if not parts:
        return ""
    return f"no plan book for set {set_name}: {', '.join(parts)}; `{search_command(set_name, images)}` makes one"


def other_game_message(set_name: str, differences: Sequence[str]) -> str:
    """Return one sentence on a plan book that was searched with other settings; empty without ``differences``."""
    if not differences:
        return ""
    return (
        f"the plan book of set {set_name} was searched with other settings ({', '.join(differences)}), so its plans "
        f"and rules need not be the best; `{search_command(set_name)}` with the settings of the run makes another"
    )


def _enumeration(names: Sequence[str]) -> str:
    """Return the names as in a sentence, such as "a, b and c"."""
    *others, last = names
    return f"{', '.join(others)} and {last}" if others else last


def write_book(book: PlanBook, path: Path) -> None:
    """Write a plan book atomically, as indented JSON with sorted keys."""
    text = json.dumps(book.model_dump(mode="json"), indent=2, sort_keys=True) + "\n"
    atomic_write(path, text.encode())


def lacks_book(decision: GateDecision) -> bool:
    """Return whether a candidate was judged without the comparisons that need a plan book."""
    return any(line.name == PLAN_BOOK and line.value == 0.0 for line in decision.criteria)
