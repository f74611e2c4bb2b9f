"""``simic compare``: whether one controller or policy is better than another."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeAlias

import typer

from simic.cli import completion
from simic.cli.console import EXIT_CODES, LOADING_TORCH, emit, stderr, working
from simic.cli.options import (
    CONSULTING_HELP,
    CONTROLLER_NAMES,
    POLICY_NAMES,
    SEARCHED_HELP,
    AsJson,
    HostKeys,
    Hosts,
    Land,
    Overrides,
    ProfileName,
    Seed,
    SetName,
    SplitName,
    open_container,
    parse_named_hosts,
)
from simic.cli.recipes import RECIPE_HELP, is_recipe, parse_recipe
from simic.cli.tables import cost_table, numbers_table, search_table
from simic.contracts.errors import ConfigError
from simic.contracts.splits import Split
from simic.validation.table import INTERVALS_NOTE, SCORED_NOTE, Table, interval, marked

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from simic.app.container import Container
    from simic.contracts.results.comparison import Comparison, PairComparison
    from simic.contracts.results.recipes import RecipeComparison

__all__ = ["PairPlot", "add_to", "draw", "pairs_table", "show_run"]

PairPlot: TypeAlias = Annotated[
    Path | None,
    typer.Option("--plot", metavar="FILE.png", help="Also draw the differences of each pair with their intervals."),
]
"""Of the verbs that compare pairs."""
Arms: TypeAlias = Annotated[
    list[str],
    typer.Argument(
        help=f"Two or more controllers ({CONTROLLER_NAMES}), policies ({POLICY_NAMES}; {CONSULTING_HELP}), the arms "
        f"that search ({SEARCHED_HELP}), or recipes, of which the newest policy takes part: {RECIPE_HELP}.",
        autocompletion=completion.controller_list,
    ),
]
_HEADER = ("controller", "against", "verdict", "difference", "adjusted p", "improves", "detectable")
_NOTE = (
    "difference: mean return, paired by host, in points, with its interval. adjusted p: sign flips of the paired "
    "differences, adjusted for all pairs by Holm's method; up to 0.05 a difference is shown. improves: probability "
    "that a return of the controller exceeds one of the other, without pairing. detectable: smallest difference that "
    "these hosts show with 80 % power in the strictest step of the adjustment; nothing if so few hosts can show "
    "none, or all differences are equal. The interval compares hosts within their families; p and "
    "detectable take all hosts together, which is more cautious where families differ. "
    f"{INTERVALS_NOTE}"
)
_SEQUENTIAL_NOTE = (
    "adjusted p: adjusted for all pairs by Holm's method; up to 0.05 a difference is shown. improves: probability that "
    "a return of the controller exceeds one of the other, without pairing. detectable: smallest difference that a test "
    "on just these hosts, at one look, shows with 80 % power; nothing if so few hosts can show none, or all "
    "differences are equal; the test at every look needs a larger one. Intervals by "
    "family are Student's, of one look, and wide for few hosts."
)


def add_to(app: typer.Typer) -> None:
    """Register `simic compare`, with its exit codes."""
    app.command("compare", epilog=EXIT_CODES)(compare)


def compare(
    arms: Arms,
    host_keys: HostKeys = None,
    hosts: Hosts = None,
    split: SplitName = None,
    world_set: SetName = None,
    until_decided: Annotated[
        bool,
        typer.Option(
            "--until-decided",
            help="Grow hosts in rounds, up to --hosts of each family, until every pair shows a difference.",
        ),
    ] = False,
    land: Land = False,
    plot: PairPlot = None,
    profile: ProfileName = "default",
    seed: Seed = 0,
    override: Overrides = None,
    as_json: AsJson = False,
) -> None:
    """Say of each pair of controllers or policies whether one is better, from episodes on the same hosts.

    A recipe stands for the policy that this home trained last with exactly its settings. `simic ab` compares recipes
    themselves, over several trainings.

    The hosts and episodes are those of [bold]simic trials[/bold], and the receipt is kept in the same way; wait takes
    part in it too. A difference counts as shown if its p value, adjusted for all pairs, is at most 0.05. --json has
    the differences within each family too.

    With --until-decided p values and intervals hold at every look, so stopping early keeps the level of 0.05. Large
    differences need fewer hosts; without the option, all hosts together show smaller ones (ADR 39).

    With --land the episodes, which have to be on test hosts, reach the lake at the next [bold]simic ingest[/bold]; view
    judging_episodes has them.

    Example: [bold]simic compare heuristic blind wait --hosts 64[/bold]
    """
    if until_decided and host_keys is not None:
        raise ConfigError(
            "--until-decided draws the hosts in rounds, so --host-keys cannot name them; give one of them"
        )
    if plot is not None:
        from simic.app.display.timelines import check_plot  # it loads numpy, which completion need not wait for

        check_plot(plot)
    keys = parse_named_hosts(host_keys, {"--hosts": hosts, "--split": split})
    extra = {"world.set": world_set, "trial.hosts_per_family": hosts, "trial.land": land or None}
    named = [arm for arm in arms if not is_recipe(arm)]
    container = open_container(profile, seed, override, extra, controllers=named)
    with working(LOADING_TORCH):
        from simic.app.comparisons import comparison
        from simic.app.comparisons.comparison_runs import log_compared

    arms = [_newest(container, arm) if is_recipe(arm) else arm for arm in arms]
    compared = (
        comparison.compare_until_decided(container, arms, split or Split.TEST)
        if until_decided
        else comparison.compare(container, arms, keys, split or Split.TEST)
    )
    written = draw(compared, plot)
    emit(compared, as_json, lambda console: console.print(*_page(compared), *written, sep="\n"))
    show_run(log_compared(container, compared))  # last, because a store that fails shall lose no result


def _newest(container: Container, arm: str) -> str:
    from simic.app.comparisons.recipes import newest_policy

    recipe = parse_recipe(arm)
    return newest_policy(container, recipe.config, recipe.name)


def _page(comparison: Comparison) -> Iterator[object]:
    pairs, trials = comparison.pairs, comparison.trials
    title = f"{len(trials.host_keys)} hosts of set {trials.set}, paired by host"
    yield numbers_table(pairs_table(pairs), title, names=3)
    yield _note(comparison)
    if any(pair.scored_by == "test" for pair in pairs):
        yield SCORED_NOTE
    yield numbers_table(_families(pairs), "By family, paired by host", names=2)
    yield cost_table(trials)
    yield from search_table(trials)


def _note(comparison: Comparison) -> str:
    stop = comparison.sequential
    if stop is None:
        return _NOTE
    state = "every pair is decided" if stop.is_decided else "not every pair is decided"
    return (
        f"After look {stop.looks} of at most {stop.most_looks}, {stop.hosts} of {stop.most_hosts} hosts, {state}. p "
        f"values and the intervals of difference hold at every look: {stop.bound}. {_SEQUENTIAL_NOTE}"
    )


def pairs_table(pairs: Sequence[PairComparison]) -> Table:
    """Return one row per pair of controllers."""
    rows: list[tuple[str, ...]] = [
        (
            pair.controller,
            pair.against,
            pair.verdict.value,
            *marked(pair.scored_by, interval(pair.difference)),
            f"{pair.adjusted_p:.4f}",
            f"{pair.probability_of_improvement:.2f}",
            "nothing" if pair.detectable is None else f"{pair.detectable:.1f}",
        )
        for pair in pairs
    ]
    return Table(_HEADER, rows)


def _families(pairs: Sequence[PairComparison]) -> Table:
    names = list(dict.fromkeys(name for pair in pairs for name in pair.by_family))
    rows: list[tuple[str, ...]] = [
        (pair.controller, pair.against, *marked(pair.scored_by, *(interval(pair.by_family[name]) for name in names)))
        for pair in pairs
    ]
    return Table(("controller", "against", *names), rows)


def show_run(run_id: str | None) -> None:
    """Print the MLflow run of a comparison on stderr; nothing in a home without MLflow's database."""
    if run_id is not None:
        stderr().print(f"MLflow run: {run_id}")


def draw(compared: Comparison | RecipeComparison, plot: Path | None) -> list[str]:
    """Draw a comparison if a file is named, and return the line that says so."""
    if plot is None:
        return []
    from simic.validation.comparison_plot import draw_comparison  # loads matplotlib

    return [f"wrote {draw_comparison(compared, plot)}"]
