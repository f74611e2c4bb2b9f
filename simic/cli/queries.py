"""Verbs that look and change nothing, and the search for the baselines' plans and rules."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from simic.cli.edge import EXIT_CODES, emit
from simic.cli.hostkeys import parse_host_keys
from simic.cli.options import AsJson, Overrides, ProfileName, Seed, open_app
from simic.cli.render import family_table, rows_table, trial_table
from simic.contracts.errors import ConfigError

__all__ = ["add_to"]

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
    as_json: AsJson = False,
) -> None:
    """Ask the views, from reports to policies; docs/schema.md has their columns, docs/queries.md worked examples.

    Views: reports, steps, episodes, decisions, rewards, snapshots, policies, gates, quarantine, trainings, rejected.
    """
    rows = open_app().sql(query)
    emit(rows, as_json, lambda console: console.print(rows_table(rows) if rows else "no rows"))


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
