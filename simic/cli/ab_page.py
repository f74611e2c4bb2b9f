"""What `simic ab` found, for the terminal and as a page in Markdown."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote

from simic.cli.compare import pairs_table
from simic.cli.console import visible
from simic.contracts.names import short
from simic.contracts.results.comparison import LEVEL
from simic.contracts.results.recipes import RecipeComparison
from simic.runtime.files import atomic_write
from simic.validation.table import Table, escape_markdown, fenced, interval, markdown, percent

__all__ = ["Section", "sections", "write_page"]

_PAIR_HEADER = ("recipe", "against", "verdict", "difference", "U", "adjusted p", "improves", "effect")
_COST_HEADER = (
    "return", "over never growing", "spread", "test accuracy", "parameters", "extra compute", "training s", "failed",
)  # fmt: skip
_MOST_SETTINGS = 4
"""Most settings that get a column; --json has all in which the recipes differ."""
_NOTE = (
    "difference: mean return, paired by training seed and host, in points, with Student's interval over training seeds "
    "and hosts, which is wide for few seeds. U: Mann-Whitney's, of the mean returns of the trainings. adjusted p: its "
    "exact p value if both recipes give trainings of one distribution of mean returns (equal medians are not enough), "
    "adjusted for all pairs by Holm's method; up to 0.05 a difference is shown, unless a recipe does not vary at all. "
    "improves: probability that a training of the recipe is better than one of the other. effect: twice that less 1. "
    "spread: standard deviation between training seeds."
)
_ONE_SEED = (
    "One training seed: this compares two policies over hosts, not the recipes, because another seed gives another "
    "policy. --seeds 4 or more can show a difference between two recipes."
)


class Section(NamedTuple):
    """A table with what it shows; ``names`` is the number of its columns that hold names, not numbers."""

    title: str
    table: Table
    names: int
    notes: tuple[str, ...]
    """What is to be said below it: paragraphs, which may hold text of plug-ins."""


def write_page(comparison: RecipeComparison, out: Path, figure: Path, command: str) -> str:
    """Write the page ``out`` with the plot ``figure`` and the command that makes both; return the line about it."""
    atomic_write(out, _page(comparison, command, os.path.relpath(figure, out.parent)).encode(), mode=0o644)
    return f"wrote {out}"


def _page(comparison: RecipeComparison, command: str, figure: str) -> str:
    """Return the page in Markdown; ``figure`` is the path of the plot, relative to the page."""
    blocks = [
        "# Comparison of recipes",
        _introduction(comparison),
        fenced(command),
        f"![Differences of each pair with their intervals]({quote(figure)})",
    ]
    for section in sections(comparison):
        blocks += [f"## {section.title}", markdown(section.table), *map(escape_markdown, section.notes)]
    return "\n\n".join(visible(block) for block in blocks) + "\n"


def _introduction(comparison: RecipeComparison) -> str:
    given = comparison.snapshot_digest
    learned = "each recipe collects its own experience" if given is None else f"all train on snapshot {short(given)}"
    if comparison.start_digest is not None:
        learned += f" from policy {short(comparison.start_digest)}"
    return (
        f"Each recipe is trained with {_seeds(comparison)}; {learned}. All policies are tried on the same hosts of set "
        f"`{comparison.set}`, {comparison.hosts_per_family} of each family, from key {comparison.first_key} on. "
        f"Returns and differences are in points. Code version {comparison.code_version}. This makes the page again:"
    )


def sections(comparison: RecipeComparison) -> Iterator[Section]:
    """Return the tables, those that answer the question first."""
    count = f"{comparison.hosts_per_family} hosts of each family of set {comparison.set}"
    yield Section(f"{_seeds(comparison)}, {count}".capitalize(), _recipes(comparison), 1, _failures(comparison))
    if len(comparison.seeds) == 1:
        yield Section("The policies of one training seed", pairs_table(comparison.policies), 3, (_ONE_SEED,))
        return
    unjudged = [
        f"{pair.recipe} against {pair.against}: no verdict, {pair.unjudged}."
        for pair in comparison.pairs
        if pair.unjudged
    ]
    notes = (*unjudged, f"{_NOTE}{_power(comparison)}")
    yield Section("Recipes, paired by training seed and host", _pairs(comparison), 3, notes)
    yield Section("By training seed, paired by host", _by_seed(comparison), 2, ())
    yield Section("By family, paired by training seed and host", _by_family(comparison), 2, ())


def _seeds(comparison: RecipeComparison) -> str:
    count = len(comparison.seeds)
    return (
        f"{count} training seeds from {comparison.seeds[0]} on" if count > 1 else f"training seed {comparison.seeds[0]}"
    )


def _failures(comparison: RecipeComparison) -> tuple[str, ...]:
    return tuple(
        f"{recipe.name}: seed {own.seed} failed: {own.failure}"
        for recipe in comparison.recipes
        for own in recipe.policies
        if own.failure
    )


def _recipes(comparison: RecipeComparison) -> Table:
    names = list(dict.fromkeys(name for recipe in comparison.recipes for name in recipe.settings))
    shown = names if len(names) <= _MOST_SETTINGS else []
    rows: list[tuple[str, ...]] = [
        (
            recipe.name,
            *(recipe.settings.get(name, "-") for name in shown),
            f"{recipe.mean_return:.1f}",
            f"{recipe.over_wait:+.1f}",
            "-" if recipe.spread is None else f"{recipe.spread:.2f}",
            percent(recipe.test_accuracy),
            f"{recipe.parameters:.0f}",
            percent(recipe.extra_compute),
            f"{recipe.train_s:.1f}",
            str(sum(own.failure is not None for own in recipe.policies)),
        )
        for recipe in comparison.recipes
    ]
    return Table(("recipe", *shown, *_COST_HEADER), rows)


def _pairs(comparison: RecipeComparison) -> Table:
    rows: list[tuple[str, ...]] = [
        (
            pair.recipe,
            pair.against,
            pair.verdict.value,
            interval(pair.difference),
            f"{pair.u:g}",
            f"{pair.adjusted_p:.4f}",
            f"{pair.probability_of_improvement:.2f}",
            f"{pair.effect:+.2f}",
        )
        for pair in comparison.pairs
    ]
    return Table(_PAIR_HEADER, rows)


def _power(comparison: RecipeComparison) -> str:
    if comparison.least_p <= LEVEL:
        return ""
    return (
        f" {len(comparison.seeds)} training seeds cannot show a difference: the smallest adjusted p is "
        f"{comparison.least_p:.2f}; give more --seeds."
    )


def _by_seed(comparison: RecipeComparison) -> Table:
    rows: list[tuple[str, ...]] = [
        (pair.recipe, pair.against, *map(interval, pair.by_seed)) for pair in comparison.pairs
    ]
    return Table(("recipe", "against", *(f"seed {seed}" for seed in comparison.seeds)), rows)


def _by_family(comparison: RecipeComparison) -> Table:
    names = list(comparison.pairs[0].by_family)
    rows: list[tuple[str, ...]] = [
        (pair.recipe, pair.against, *(interval(pair.by_family[name]) for name in names)) for pair in comparison.pairs
    ]
    return Table(("recipe", "against", *names), rows)
