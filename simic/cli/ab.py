"""``simic ab``: whether one recipe trains better policies than another."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from simic.cli import completion
from simic.cli.compare import PairPlot, draw, interval, pairs_table, run_line
from simic.cli.console import emit
from simic.cli.options import AsJson, Overrides, Seed, SplitName, show_progress, whole_number
from simic.cli.recipes import RECIPE_HELP, parse_recipes
from simic.cli.tables import numbers_table
from simic.contracts.comparison import LEVEL
from simic.contracts.splits import Split
from simic.runtime.home import HomeUse, resolve_home
from simic.validation.table import Table, percent

if TYPE_CHECKING:
    from collections.abc import Iterator

    from simic.contracts.recipes import RecipeComparison

__all__ = ["add_to"]

AB_CODES = (
    "Exit codes: 0 compared, whatever was found, 1 failed, 2 usage or configuration, or a training that another "
    "version of the code or PyTorch made (--fresh makes it again), 3 never, 4 try again: another comparison of recipes "
    "is made in this home, or the failure was transient, 130 interrupted."
)
_PAIR_HEADER = ("recipe", "against", "verdict", "difference", "U", "adjusted p", "improves", "effect")
_COST_HEADER = ("return", "spread", "test accuracy", "parameters", "extra compute", "training s", "failed")
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


def add_to(app: typer.Typer) -> None:
    """Register the verb."""
    app.command("ab", epilog=AB_CODES)(ab)


def ab(
    recipes: Annotated[
        list[str], typer.Argument(help=f"Two or more recipes: {RECIPE_HELP}.", autocompletion=completion.profiles)
    ],
    seeds: Annotated[int, whole_number("--seeds", least=1, most=100, about="Number of training seeds.")] = 5,
    hosts: Annotated[
        int, whole_number("--hosts", least=2, most=100_000, about="Number of judging hosts of each family.")
    ] = 32,
    split: SplitName = None,
    world_set: Annotated[
        str | None,
        typer.Option(
            "--set",
            help="The set of the judging hosts. Default: that of the recipes, which is the same then.",
            autocompletion=completion.sets,
        ),
    ] = None,
    snapshot: Annotated[
        str | None,
        typer.Option(
            help="Snapshot on which all recipes train: a directory, or the first 4 or more characters of a digest. "
            "Default: each recipe collects its own experience.",
            autocompletion=completion.snapshots,
        ),
    ] = None,
    fresh: Annotated[
        bool,
        typer.Option(
            "--fresh", help="Make trainings of another version of the code or PyTorch again; else they are refused."
        ),
    ] = False,
    plot: PairPlot = None,
    seed: Seed = 0,
    override: Overrides = None,
    as_json: AsJson = False,
) -> None:
    """Train recipes with the same seeds and say of each pair whether one trains better policies.

    One training is one sample: another seed gives another policy. So every recipe is trained with each of --seeds
    seeds, from --seed on, in turns: A, B, then B, A. A training is that of `simic run` in a new home, up to its last
    policy, without a judgement. Then all policies grow the same judging hosts.

    The unit of the test is a training. Two recipes need 4 seeds for a verdict, three need 5. With one seed only the two
    policies are compared. A recipe whose trainings are all worth the same, such as one that always fails, gets none.

    With --snapshot all recipes train on the same data, and may differ only in what does not decide data. -o changes a
    setting of all recipes. Intervals have the confidence of the first recipe (trial.confidence).

    Everything lies in data/ab of the home, with one receipt per training: a killed comparison continues with the same
    command, and one with more seeds or recipes uses the trainings that exist. Remove data/ab to free the space.

    Example: [bold]simic ab quick 'quick -o train.distil_passes=2' --seeds 4 --hosts 8[/bold]
    """
    from simic.app.artifacts import resolve_snapshot
    from simic.app.comparison_runs import log_recipes
    from simic.app.container import Container
    from simic.app.recipe_trial import RecipeRequest, compare
    from simic.app.recipes import judging_config
    from simic.app.timelines import check_plot

    if plot is not None:
        check_plot(plot)
    parsed = parse_recipes(recipes, override)
    config = judging_config(parsed, world_set)
    container = Container(resolve_home(), config, seed, progress=show_progress(), use=HomeUse.MAKE)
    request = RecipeRequest(
        recipes=parsed,
        seeds=tuple(range(seed, seed + seeds)),
        hosts=hosts,
        split=split or Split.TEST,
        snapshot=None if snapshot is None else resolve_snapshot(container, snapshot),
        is_fresh=fresh,
    )
    found = compare(container, request)
    written = [*run_line(log_recipes(container, found)), *draw(found, plot)]
    emit(found, as_json, lambda console: console.print(*_page(found), *written, sep="\n"))


def _page(found: RecipeComparison) -> Iterator[object]:
    count = len(found.seeds)
    seeds = f"{count} training seeds from {found.seeds[0]} on" if count > 1 else f"training seed {found.seeds[0]}"
    title = f"{seeds}, {found.hosts_per_family} hosts of each family of set {found.set}"
    yield numbers_table(_recipes(found), title, names=1)
    for one in found.recipes:
        yield from (f"{one.name}: seed {own.seed} failed: {own.failure}" for own in one.policies if own.failure)
    if count == 1:
        yield from (_ONE_SEED, numbers_table(pairs_table(found.policies), "The two policies", names=3))
        return
    yield numbers_table(_pairs(found), "Recipes, paired by training seed and host", names=3)
    yield from (
        f"{one.recipe} against {one.against}: no verdict, {one.unjudged}." for one in found.pairs if one.unjudged
    )
    yield f"{_NOTE}{_power(found)}"
    yield numbers_table(_by_seed(found), "By training seed, paired by host", names=2)
    yield numbers_table(_by_family(found), "By family, paired by training seed and host", names=2)


def _recipes(found: RecipeComparison) -> Table:
    names = list(dict.fromkeys(name for one in found.recipes for name in one.settings))
    shown = names if len(names) <= _MOST_SETTINGS else []
    rows: list[tuple[str, ...]] = [
        (
            one.name,
            *(one.settings.get(name, "-") for name in shown),
            f"{one.mean_return:.1f}",
            "-" if one.spread is None else f"{one.spread:.2f}",
            percent(one.test_accuracy),
            f"{one.parameters:.0f}",
            percent(one.extra_compute),
            f"{one.train_s:.1f}",
            str(sum(own.failure is not None for own in one.policies)),
        )
        for one in found.recipes
    ]
    return Table(("recipe", *shown, *_COST_HEADER), rows)


def _pairs(found: RecipeComparison) -> Table:
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
        for pair in found.pairs
    ]
    return Table(_PAIR_HEADER, rows)


def _power(found: RecipeComparison) -> str:
    if found.least_p <= LEVEL:
        return ""
    return (
        f" {len(found.seeds)} training seeds cannot show a difference: the smallest adjusted p is {found.least_p:.2f}; "
        "give more --seeds."
    )


def _by_seed(found: RecipeComparison) -> Table:
    rows: list[tuple[str, ...]] = [(pair.recipe, pair.against, *map(interval, pair.by_seed)) for pair in found.pairs]
    return Table(("recipe", "against", *(f"seed {seed}" for seed in found.seeds)), rows)


def _by_family(found: RecipeComparison) -> Table:
    names = list(found.pairs[0].by_family)
    rows: list[tuple[str, ...]] = [
        (pair.recipe, pair.against, *(interval(pair.by_family[name]) for name in names)) for pair in found.pairs
    ]
    return Table(("recipe", "against", *names), rows)
