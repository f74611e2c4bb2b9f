"""Commands that make plan books and say what growth can gain, and the check of plan books before a run."""

from __future__ import annotations

import logging
from pathlib import Path

from simic.app.container import Container
from simic.app.names.host_set_names import check_run
from simic.contracts.controllers import PlanBook
from simic.contracts.results.headroom import Headroom
from simic.controllers.plans import plan_path
from simic.validation.baselines import headroom, search
from simic.validation.baselines.plan_book import (
    book_differences,
    book_of,
    current_book,
    other_game_message,
    write_book,
)
from simic.validation.baselines.symptom_tree import add_tree
from simic.validation.criterion import REPORTS
from simic.validation.further import further_config, further_sets

__all__ = ["check_baselines", "fit_tree", "measure_headroom", "search_plans"]

_LOG = logging.getLogger(__name__)


def check_baselines(container: Container, *, has_gate: bool = True) -> None:
    """Check the baselines of all trials at the start of a run, because the trials at its end would fail anyway.

    Where reports judge there are no trials. ``has_gate`` says whether the gate judges what the run trains.

    Raises:
        ConfigError: if the set, a further set or a family in ``world.without`` is unknown, or a plan book is outdated,
            or missing where one is required.
        DatasetError: if the set has a plan book or needs one, and ``world.images`` cannot be read.
    """
    world = container.config.world
    check_run(container.config)
    if container.config.gate.evidence == REPORTS:
        return
    is_required = container.config.gate.require_plan_book
    worlds = [further_config(container.config, name).world for name in further_sets(container.config)]
    for trial_world in (world, *worlds):
        book = book_of(trial_world.set, container.home.plans, is_required=is_required, images=trial_world.images)
        if differences := book_differences(book, trial_world, container.config.curate.reward.basic):
            result = "; the gate will reject the candidate" if trial_world is world and has_gate else ""
            _LOG.warning("%s%s", other_game_message(trial_world.set, differences), result)


def measure_headroom(container: Container, hosts: int) -> Headroom:
    """Measure what every plan of one seed gains over never growing on ``hosts`` training hosts of each family."""
    config = container.config
    return headroom.measure_headroom(
        config.world, config.curate.reward.basic, hosts, seed=container.seed, progress=container.progress
    )


def search_plans(container: Container, out: Path | None = None) -> tuple[PlanBook, Path]:
    """Search the best fixed plans and the best rules of the heuristic on training hosts, and fit the tree of symptom.

    Returns:
        The plan book and the file it was written to: ``out``, or else a file of this home, which takes precedence over
        the book that Simic ships.
    """
    book = search.search_plans(
        container.config.world,
        container.config.curate.reward.basic,
        seed=container.seed,
        progress=container.progress,
    )
    return _keep(container, book, out)


def fit_tree(container: Container, out: Path | None = None) -> tuple[PlanBook, Path]:
    """Fit only the tree of symptom; plans and rules are those of the present book of the set.

    Returns:
        As ``search_plans``.

    Raises:
        ConfigError: if there is no book, or it is outdated.
    """
    world = container.config.world
    book = add_tree(world, current_book(world.set, container.home.plans, world.images), progress=container.progress)
    return _keep(container, book, out)


def _keep(container: Container, book: PlanBook, out: Path | None) -> tuple[PlanBook, Path]:
    path = out or plan_path(book.set, container.home.plans)
    write_book(book, path)
    return book, path
