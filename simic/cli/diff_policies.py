"""``simic diff-policies``: where two policies act differently."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from simic.cli import completion
from simic.cli.compare import show_run
from simic.cli.console import EXIT_CODES, LOADING_TORCH, emit, working
from simic.cli.options import (
    AsJson,
    Overrides,
    PolicyOrRules,
    ProfileName,
    Seed,
    SetName,
    SnapshotName,
    open_container,
    whole_number,
)
from simic.cli.tables import numbers_table
from simic.contracts.errors import ConfigError
from simic.contracts.names import short
from simic.runtime.files import check_writable
from simic.validation.table import Table

if TYPE_CHECKING:
    from simic.app.comparisons.policy_difference import Compared

__all__ = ["add_to"]

_NOTE = (
    "disagreement: smallest probability of acting differently in a state, with its 95 % interval over hosts; other "
    "choice: share of the states in which the likeliest actions differ. Which policy is better is another question: "
    "`simic compare`."
)


def add_to(app: typer.Typer) -> None:
    """Register `simic diff-policies`, with its exit codes."""
    app.command("diff-policies", epilog=EXIT_CODES)(diff_policies)


def diff_policies(
    first: PolicyOrRules,
    second: Annotated[str, typer.Argument(help="Another one.", autocompletion=completion.controllers)],
    snapshot: SnapshotName = None,
    episodes: Annotated[
        int, whole_number(least=1, most=100_000, about="Largest number of logged episodes to read.")
    ] = 2_000,
    grown: Annotated[
        int,
        whole_number(
            least=0, most=100, about="Largest number of test hosts of the set to grow under both, one of each family."
        ),
    ] = 4,
    out: Annotated[
        Path | None, typer.Option(help="File of the page, *.html; default: one in the home, whose name is printed.")
    ] = None,
    world_set: SetName = None,
    profile: ProfileName = "default",
    seed: Seed = 0,
    override: Overrides = None,
    as_json: AsJson = False,
) -> None:
    """Show in which logged states two policies act differently, and what they do there.

    Reads the states of a snapshot in which an operation besides WAIT was legal, and asks both policies, as they act in
    trials. Writes a page with tables and pictures: by family, epoch and stage of the seeds, the commonest different
    actions, the states of greatest disagreement, and test hosts grown under both, side by side, with what each seed
    and each pair of seeds contributes. MLflow's experiment [bold]simic instruments[/bold] keeps page and figures too,
    in a home that has MLflow's database.

    Example: [bold]simic diff-policies champion tamiyo/1[/bold]
    """
    if out is not None:
        if out.suffix.lower() != ".html" or out.is_dir():
            raise ConfigError(f"--out expects the name of an .html file, found {str(out)!r}")
        check_writable(out, "--out")
    container = open_container(profile, seed, override, {"world.set": world_set}, controllers=[first, second])
    with working(LOADING_TORCH):
        from simic.app.comparisons.policy_difference import DifferenceChoice, compare_policies, log_difference

    choice = DifferenceChoice(first, second, snapshot, episodes, grown, out)
    compared = compare_policies(container, choice)
    emit(compared.report, as_json, lambda console: console.print(*_page(compared), sep="\n"))
    show_run(log_difference(container, compared))  # last, because a store that fails shall lose no result


def _page(compared: Compared) -> list[object]:
    report = compared.report
    from simic.validation.difference_page import share_text  # loads matplotlib

    title = (
        f"{report.first} and {report.second}: {report.states} states of {report.episodes} episodes, snapshot "
        f"{short(report.snapshot_digest)}"
    )
    rows: list[tuple[str, ...]] = [
        ("all", "all", str(report.states), share_text(report.disagreement), f"{report.other_choice:.1%}"),
        *(
            (group.by, group.name, str(group.states), share_text(group.disagreement), f"{group.other_choice:.1%}")
            for group in report.groups
        ),
    ]
    changes: list[tuple[str, ...]] = [(change.first, change.second, f"{change.share:.1%}") for change in report.changes]
    shown: list[object] = [
        numbers_table(Table(("states", "name", "number", "disagreement", "other choice"), rows), title, names=2)
    ]
    if changes:
        names = (f"{report.first} does", f"{report.second} does", "share")
        shown.append(numbers_table(Table(names, changes), "Likeliest actions where they differ", names=2))
    return [*shown, _NOTE, f"page: {compared.page}"]
