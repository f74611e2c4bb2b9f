"""Verbs about the lake: status, compact, retain, vacuum."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from simic.cli.edge import EXIT_CODES, emit
from simic.cli.options import AsJson, Overrides, ProfileName, open_app
from simic.cli.text import cell
from simic.contracts.errors import ConfigError

if TYPE_CHECKING:
    from simic.contracts.base import Contract

__all__ = ["add_to"]

HELP = """Landed experience as files: how much there is, merging, dropping, deleting.

Each change is one line of data/ledger/ingest.jsonl; readers see what was before it or what is after it, and files stay
for an hour (lake.grace_minutes) for those who have begun. Where parts lie is chosen once, before anything lands:
SIMIC_LAKE_URL=s3://bucket/prefix?endpoint_override=HOST:PORT&scheme=http, or --override lake.url=..., with credentials
in AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY."""


def add_to(app: typer.Typer) -> None:
    """Register the verbs."""
    lake = typer.Typer(help=HELP, no_args_is_help=True)
    for verb in (status, compact, retain, vacuum):
        lake.command(verb.__name__, epilog=EXIT_CODES)(verb)
    app.add_typer(lake, name="lake")


def status(profile: ProfileName = "default", override: Overrides = None, as_json: AsJson = False) -> None:
    """Parts, rows and bytes; what waits to be merged or deleted."""
    _show(open_app(profile, overrides=override).keeper.status(), as_json)


def compact(profile: ProfileName = "default", override: Overrides = None, as_json: AsJson = False) -> None:
    """Merge small parts that stand side by side; rows and their order stay as they are.

    An ingest does this by itself for lake.compact_parts of them in a row. What is small says lake.small_mb.
    """
    _show(open_app(profile, overrides=override).keeper.compact(), as_json)


def retain(
    max_age_days: Annotated[
        float | None, typer.Option(help="Drop parts whose newest row landed longer ago; default: lake.max_age_days.")
    ] = None,
    max_bytes: Annotated[
        int | None,
        typer.Option(min=0, help="Then the oldest parts beyond so many bytes; default: lake.max_bytes."),
    ] = None,
    profile: ProfileName = "default",
    override: Overrides = None,
    as_json: AsJson = False,
) -> None:
    """Drop the oldest parts for good; snapshots made of them stay, and their reports are not taken for new again.

    Example: [bold]simic lake retain --max-age-days 90 --max-bytes 50000000000[/bold]
    """
    app = open_app(profile, overrides=override, extra=_given(max_age_days=max_age_days, max_bytes=max_bytes))
    if app.config.lake.max_age_days is None and app.config.lake.max_bytes is None:
        raise ConfigError("nothing to go by: give --max-age-days or --max-bytes, or set lake.max_age_days or max_bytes")
    _show(app.keeper.retain(), as_json)


def vacuum(
    grace_minutes: Annotated[
        float | None,
        typer.Option(min=0, help="Keep files of parts that left more recently; default: lake.grace_minutes."),
    ] = None,
    profile: ProfileName = "default",
    override: Overrides = None,
    as_json: AsJson = False,
) -> None:
    """Delete files of merged and dropped parts, and ids remembered longer than lake.remember_days.

    An ingest does this by itself. A query that runs longer than the time of grace may fail and can be repeated.
    """
    _show(open_app(profile, overrides=override, extra=_given(grace_minutes=grace_minutes)).keeper.vacuum(), as_json)


def _given(**settings: float | None) -> dict[str, object]:
    """Flags that were given, as settings of the lake, so that they are held to the same bounds."""
    return {f"lake.{name}": value for name, value in settings.items() if value is not None}


def _show(result: Contract, as_json: bool) -> None:
    emit(result, as_json, lambda console: console.print(_facts(result)))


def _facts(result: Contract) -> Table:
    table = Table(show_header=False, box=None, pad_edge=False, highlight=False)
    table.add_column(style="bold")
    table.add_column(overflow="fold")
    for name, value in result.model_dump(mode="json").items():
        table.add_row(name.replace("_", " "), cell("-" if value is None else value))
    return table
