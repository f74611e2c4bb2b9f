"""``simic ab``: whether one recipe trains better policies than another."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeAlias

import typer
from rich.text import Text

from simic.app.names.host_set_names import check_set
from simic.cli import completion
from simic.cli.ab_page import sections, write_page
from simic.cli.compare import PairPlot, draw, show_run
from simic.cli.console import LOADING_TORCH, emit, working
from simic.cli.options import (
    POLICY_NAMES,
    AsJson,
    Overrides,
    Seed,
    SplitName,
    check_page_name,
    command_text,
    show_progress,
    whole_number,
)
from simic.cli.recipes import RECIPE_HELP, parse_recipes
from simic.cli.tables import numbers_table
from simic.contracts.errors import ConfigError
from simic.contracts.splits import Split
from simic.runtime.files import check_writable
from simic.runtime.home import HomeUse, resolve_home

if TYPE_CHECKING:
    from collections.abc import Iterator

    from simic.contracts.results.recipes import RecipeComparison

__all__ = ["add_to"]

AB_CODES = (
    "Exit codes: 0 compared, whatever was found, 1 failed, 2 usage or configuration, or a training that another "
    "version of the code or PyTorch made (--fresh makes it again), 3 never, 4 try again: another comparison of recipes "
    "is made in this home, or the failure was transient, 130 interrupted."
)


JudgingSet: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--set",
        help="The set of the judging hosts. Default: that of the recipes, which is the same then.",
        autocompletion=completion.sets,
    ),
]
CommonSnapshot: TypeAlias = Annotated[
    str | None,
    typer.Option(
        help="Snapshot on which all recipes train: a directory, or the first 4 or more characters of a digest. "
        "Default: each recipe collects its own experience.",
        autocompletion=completion.snapshots,
    ),
]
CommonStart: TypeAlias = Annotated[
    str | None,
    typer.Option(
        help=f"Policy from which all recipes train ({POLICY_NAMES}), for the second night of a champion; it needs "
        "--snapshot. Default: nothing.",
        autocompletion=completion.starts,
    ),
]
AgainstFirst: TypeAlias = Annotated[
    bool,
    typer.Option(
        "--against-first",
        help="Compare each recipe with the first one only. Fewer pairs need fewer seeds: 5 for up to 7 recipes.",
    ),
]
Fresh: TypeAlias = Annotated[
    bool,
    typer.Option(
        "--fresh", help="Make trainings of another version of the code or PyTorch again; else they are refused."
    ),
]


def add_to(app: typer.Typer) -> None:
    """Register `simic ab`, with its exit codes."""
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
    world_set: JudgingSet = None,
    snapshot: CommonSnapshot = None,
    start: CommonStart = None,
    against_first: AgainstFirst = False,
    out: Annotated[
        Path | None,
        typer.Option("--out", metavar="FILE.md", help="Also write a page, with the plot beside it as a PNG file."),
    ] = None,
    fresh: Fresh = False,
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

    --against-first is for ablations: the first recipe is the default, each other one changes something. --out writes
    the tables, the plot and the command as a page.

    A recipe with controller.karn=consult also trains Karn, on the snapshot of its policy, which consults it when it is
    judged.

    With --snapshot all recipes train on the same data, and may differ only in what does not decide data; with --start
    they go on from one policy there. -o changes a setting of all recipes. Intervals have the confidence of the first
    recipe (trial.confidence).

    Everything lies in data/ab of the home, with one receipt per training: a killed comparison continues with the same
    command, and one with more seeds or recipes uses the trainings that exist. Remove data/ab to free the space.

    Example: [bold]simic ab quick 'quick -o train.distil_passes=2' --seeds 4 --hosts 8[/bold]
    """
    drawn = plot or (None if out is None else out.with_suffix(".png"))
    _check_options(out, plot, drawn, world_set, snapshot, start)
    parsed = parse_recipes(recipes, override)
    with working(LOADING_TORCH):
        from simic.app import training
        from simic.app.artifacts import resolve_snapshot
        from simic.app.comparisons.comparison_runs import log_recipes
        from simic.app.comparisons.recipe_trial import RecipeRequest, compare
        from simic.app.comparisons.recipes import judging_config
        from simic.app.container import Container

    config = judging_config(parsed, world_set)
    container = Container(resolve_home(), config, seed, progress=show_progress(), use=HomeUse.MAKE)
    request = RecipeRequest(
        recipes=parsed,
        seeds=tuple(range(seed, seed + seeds)),
        hosts=hosts,
        split=split or Split.TEST,
        snapshot=None if snapshot is None else resolve_snapshot(container, snapshot),
        is_against_first=against_first,
        is_fresh=fresh,
        start=None if start is None else training.resolve_start(container, start),
    )
    comparison = compare(container, request)
    written = draw(comparison, drawn)
    if out is not None and drawn is not None:
        options: dict[str, object] = {"--seeds": seeds, "--hosts": hosts, "--seed": seed, "--set": world_set}
        options |= {"--split": split and split.value, "--snapshot": snapshot, "--start": start}
        options |= {"--against-first": against_first, "--plot": plot, "-o": override, "--out": out}
        written.append(write_page(comparison, out, drawn, command_text("ab", recipes, options)))
    emit(comparison, as_json, lambda console: console.print(*_tables(comparison), *written, sep="\n"))
    show_run(log_recipes(container, comparison))  # last, because a store that fails shall lose no result


def _check_options(
    out: Path | None,
    plot: Path | None,
    drawn: Path | None,
    world_set: str | None,
    snapshot: str | None,
    start: str | None,
) -> None:
    """Raise ConfigError for options with which nothing can be compared, as far as they tell without torch."""
    if out is not None:
        check_page_name(out)
        check_writable(out, "--out")
    if drawn is not None:
        from simic.app.display.timelines import check_plot  # it loads numpy, which completion need not wait for

        check_plot(drawn, "--plot" if plot is not None else "the plot of --out")
    if world_set is not None:
        check_set(world_set)
    if start is not None and snapshot is None:
        raise ConfigError("--start needs --snapshot: recipes that collect their own experience start from nothing")


def _tables(comparison: RecipeComparison) -> Iterator[object]:
    for section in sections(comparison):
        yield from (
            numbers_table(section.table, section.title, names=section.names),
            *([Text("\n\n".join(section.notes))] if section.notes else []),
        )
