"""Verbs that look and change nothing, and the search for the baselines' plans and rules."""

from __future__ import annotations

import sys
from contextlib import closing
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from simic.cli.edge import EXIT_CODES, emit, stderr, stdout, stream_rows
from simic.cli.hostkeys import parse_host_keys
from simic.cli.options import AsJson, Overrides, ProfileName, Seed, open_app
from simic.cli.render import family_table, rows_table, trial_table
from simic.contracts.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["add_to"]

SHOWN_ROWS = 1000
"""Of a query's answer, unless more are asked for; also the rows of one table."""
TRIAL_CONTROLLERS = "wait,random,heuristic,blind,oracle,champion"


def add_to(app: typer.Typer) -> None:
    """Register the verbs."""
    plans = typer.Typer(help="What the controllers heuristic, blind, oracle and expert follow.", no_args_is_help=True)
    plans.command("search", epilog=EXIT_CODES)(search)
    app.command("trials", epilog=EXIT_CODES)(trials)
    app.command("sql", epilog=EXIT_CODES)(sql)
    app.command("schema", epilog=EXIT_CODES)(schema)
    app.add_typer(plans, name="plans")


def trials(
    controllers: Annotated[
        str, typer.Option(help="Names, comma-separated; wait is always among them. champion needs one in the registry.")
    ] = TRIAL_CONTROLLERS,
    host_keys: Annotated[
        str | None,
        typer.Option(help="A:B (without B), A,B,C or a mix; default: test hosts, as the profile says."),
    ] = None,
    world_set: Annotated[str | None, typer.Option("--set", help="The set of hosts; default: the profile's.")] = None,
    profile: ProfileName = "default",
    seed: Seed = 0,
    override: Overrides = None,
    as_json: AsJson = False,
) -> None:
    """Grow the same hosts under several controllers and compare them, paired by host."""
    keys = None if host_keys is None else parse_host_keys(host_keys)
    app = open_app(profile, seed, override, {} if world_set is None else {"world.set": world_set})
    names = [name.strip() for name in controllers.split(",") if name.strip()]
    if not names:
        raise ConfigError(f"--controllers names none; for example {TRIAL_CONTROLLERS}")
    report = app.trials(names, keys)
    emit(report, as_json, lambda console: console.print(trial_table(report), family_table(report)))


def sql(
    query: Annotated[str, typer.Argument(help="One SELECT over the views.")],
    limit: Annotated[
        int | None,
        typer.Option(min=0, help=f"At most so many rows, 0 for all; default: {SHOWN_ROWS}, with --json all."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Ask the views, from reports to policies; docs/schema.md has their columns, docs/queries.md worked examples.

    Views: reports, steps, episodes, decisions, rewards, snapshots, policies, gates, quarantine, trainings, rejected.

    With --json every row comes, as soon as it is there and in bounded memory. Where rows were left out, stderr says so.
    """
    most = (0 if as_json else SHOWN_ROWS) if limit is None else limit
    with closing(open_app().sql(query)) as rows:
        wanted = islice(rows, most or None)
        if as_json:
            stream_rows(wanted)
        else:
            _show_rows(wanted)
        if most and next(rows, None) is not None:
            stderr().print(f"there are more than {most:,} rows: --limit 0 shows all, --json gives all to a program")


def _show_rows(rows: Iterator[dict[str, Any]]) -> None:
    """A table per page, for a table knows its widths only when it has all of its rows."""
    console, page = stdout(), list(islice(rows, SHOWN_ROWS))
    if not page:
        console.print("no rows")
    while page:
        console.print(rows_table(page))
        page = list(islice(rows, SHOWN_ROWS))


def schema(
    name: Annotated[str | None, typer.Argument(help="Name of a contract; without one, all names.")] = None,
    markdown: Annotated[bool, typer.Option("--markdown", help="Columns and views, as in docs/schema.md.")] = False,
    as_json: AsJson = False,
) -> None:
    """Print the JSON schema of a contract."""
    from simic.app.schemas import contract_names, schema_of

    if markdown and as_json:
        raise ConfigError("--markdown and --json exclude each other")
    if markdown:
        from simic.lake.schema_doc import render

        sys.stdout.write(render())
    elif name is None:
        emit(contract_names(), as_json, lambda console: console.print("\n".join(contract_names())))
    else:
        emit(schema_of(name), True, lambda _: None)


def search(
    out: Annotated[Path | None, typer.Option(help="Where to write the plan book; default: print it.")] = None,
    world_set: Annotated[str | None, typer.Option("--set", help="The set of hosts; default: the profile's.")] = None,
    profile: ProfileName = "default",
    seed: Seed = 0,
    override: Overrides = None,
    as_json: AsJson = False,
) -> None:
    """Try fixed plans and rules on training hosts; keep the best plan for all and per family, and the best rules."""
    extra = {} if world_set is None else {"world.set": world_set}
    book = open_app(profile, seed, override, extra).search_plans()
    if out is not None:
        from simic.validation.book import write_book

        write_book(book, out)
    emit(book, as_json or out is None, lambda console: console.print(f"wrote {out}"))
