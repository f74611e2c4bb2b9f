"""``simic trials`` and ``simic plans``: comparisons of controllers, and the plan books of the baselines."""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import Annotated

import typer

from simic.cli import completion
from simic.cli.console import EXIT_CODES, LOADING_TORCH, emit, stderr, working
from simic.cli.headroom import headroom
from simic.cli.options import (
    CONSULTING_HELP,
    CONTROLLER_NAMES,
    POLICY_NAMES,
    SEARCHED_HELP,
    AsJson,
    HostKeys,
    Hosts,
    Overrides,
    ProfileName,
    Seed,
    SetName,
    SplitName,
    open_container,
    parse_named_hosts,
    whole_number,
)
from simic.cli.tables import cost_table, family_table, rent_table, search_table, static_table, trial_table
from simic.contracts.controllers import COMPARISON_CONTROLLERS, TRIAL_CONTROLLERS
from simic.contracts.errors import ConfigError
from simic.contracts.names import CHAMPION
from simic.contracts.splits import Split
from simic.runtime.files import check_writable
from simic.runtime.home import HomeUse
from simic.validation.table import RENT_FACTORS

__all__ = ["add_to"]


class BookPart(str, Enum):
    """A part of a plan book that can be renewed alone."""

    SYMPTOM = "symptom"


def _book_part(text: str) -> BookPart:
    try:
        return BookPart(text)
    except ValueError:
        known = ", ".join(part.value for part in BookPart)
        raise typer.BadParameter(f"expected {known}, found {text!r}") from None


def add_to(app: typer.Typer) -> None:
    """Register `simic trials`, and the verbs of `simic plans`."""
    plans = typer.Typer(
        help="Plan books: the plans and rules of the controllers heuristic, blind, symptom, oracle and expert. "
        "The headroom of a set: what one seed per host can gain.",
        no_args_is_help=True,
    )
    plans.command("search", epilog=EXIT_CODES)(search)
    plans.command("headroom", epilog=EXIT_CODES)(headroom)
    app.command("trials", epilog=EXIT_CODES)(trials)
    app.add_typer(plans, name="plans")


def trials(
    controllers: Annotated[
        str | None,
        typer.Option(
            help=f"Comma-separated controllers ({CONTROLLER_NAMES}) or policies ({POLICY_NAMES}; {CONSULTING_HELP}). "
            f"Also simulate and hindsight, which search: {SEARCHED_HELP}. "
            f"wait always takes part. Default: {', '.join(COMPARISON_CONTROLLERS)} and {CHAMPION}. blind, "
            "symptom and oracle are left out if the set has no plan book; champion, if no policy has been promoted.",
            autocompletion=completion.controller_list,
        ),
    ] = None,
    host_keys: HostKeys = None,
    hosts: Hosts = None,
    split: SplitName = None,
    draw: Annotated[
        int,
        whole_number(
            "--draw",
            least=0,
            most=2**31 - 1,
            about="Number of the hosts of --split: 0 takes the first ones, every other number others. What was chosen "
            "by the trials of one number is measured without bias by those of another.",
        ),
    ] = 0,
    rent_sweep: Annotated[
        bool,
        typer.Option(
            "--rent-sweep",
            help="Also show the differences to wait at 0, 1/4, 1, 4 and 16 times the rent per parameter, from the same "
            "episodes.",
        ),
    ] = False,
    static: Annotated[
        bool,
        typer.Option(
            "--static",
            help="Also train the final network of each episode from the start without growing, for the same epochs and "
            "for the same compute, and compare. About doubles the time.",
        ),
    ] = False,
    world_set: SetName = None,
    profile: ProfileName = "default",
    seed: Seed = 0,
    override: Overrides = None,
    as_json: AsJson = False,
) -> None:
    """Grow the same hosts under several controllers and compare the returns, paired by host.

    A difference from wait needs at least 2 hosts, also within a family; otherwise the column shows a dash.
    """
    keys = parse_named_hosts(host_keys, {"--hosts": hosts, "--split": split, "--draw": draw})
    names = None if controllers is None else [name.strip() for name in controllers.split(",") if name.strip()]
    if names == []:
        raise ConfigError(f"--controllers is empty; expected names such as {','.join(TRIAL_CONTROLLERS)}")
    extra = {"world.set": world_set, "trial.hosts_per_family": hosts}
    container = open_container(profile, seed, override, extra, controllers=names or ())
    with working(LOADING_TORCH):
        from simic.app import training

    factors = RENT_FACTORS if rent_sweep else ()
    report = training.try_controllers(
        container, names, keys, split or Split.TEST, factors, draw=draw, with_static=static
    )
    if names is None and all(row.controller != CHAMPION for row in report.controllers):
        stderr().print("no champion took part: this home has none yet; `simic run` makes one")
    images = container.config.world.images
    tables = [trial_table(report, images=images), cost_table(report), *search_table(report), family_table(report)]
    if rent_sweep:
        tables.append(rent_table(report))
    if static:
        tables.append(static_table(report))
    emit(report, as_json, lambda console: console.print(*tables))


def search(
    out: Annotated[
        Path | None, typer.Option(help="File to write the plan book to; default: data/plans/<set>.json of the home.")
    ] = None,
    only: Annotated[
        BookPart | None,
        typer.Option(
            parser=_book_part,
            metavar=f"<{'|'.join(part.value for part in BookPart)}>",
            help="Search for this part only. symptom: fit the tree of the controller symptom and keep the plans and "
            "rules of the present book, which must be up to date. Default: the whole book.",
        ),
    ] = None,
    world_set: SetName = None,
    profile: ProfileName = "default",
    seed: Seed = 0,
    override: Overrides = None,
    as_json: AsJson = False,
) -> None:
    """Search for the best fixed plans and heuristic rules on training hosts and write them to a plan book.

    The book holds the best plan for all hosts and for each family, the best rules, and a tree that chooses among the
    plans. A book of the home takes precedence over the one shipped with Simic. The search takes several minutes, for
    `images` an hour: about 30,000 episodes for five families. The tree alone takes about 2,500.

    Example: [bold]simic plans search --set own_cnn[/bold]
    """
    if out is not None:
        check_writable(out, "--out")
    use = HomeUse.MAKE if out is None else HomeUse.NONE
    container = open_container(profile, seed, override, {"world.set": world_set}, use=use)
    with working(LOADING_TORCH):
        from simic.app.evidence import plan_books

    make = plan_books.search_plans if only is None else plan_books.fit_tree
    book, path = make(container, out)
    emit(book, as_json, lambda console: console.print(f"wrote {path}"))
