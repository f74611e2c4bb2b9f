"""``simic lake``: status, compact, retain and vacuum."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from simic.cli.console import EXIT_CODES, cell, emit
from simic.cli.options import AsJson, Overrides, ProfileName, number, open_container, whole_number
from simic.contracts.errors import ConfigError
from simic.runtime.home import HomeUse

if TYPE_CHECKING:
    from simic.contracts.base import Contract

__all__ = ["add_to"]

HELP = """The Parquet files of ingested reports: show, merge, drop and delete them.

Each change is one line of data/ledger/ingest.jsonl, so readers see the state either before or after it. Replaced files
stay for an hour (lake.grace_minutes) for queries in progress. Choose the location of the lake before the first ingest;
it cannot change later: SIMIC_LAKE_URL=s3://bucket/prefix?endpoint_override=HOST:PORT&scheme=http, or --override
lake.url=..., with credentials in AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY."""


def add_to(app: typer.Typer) -> None:
    """Register the verbs."""
    lake = typer.Typer(help=HELP, no_args_is_help=True)
    for verb in (status, compact, retain, vacuum):
        lake.command(verb.__name__, epilog=EXIT_CODES)(verb)
    app.add_typer(lake, name="lake")


def status(profile: ProfileName = "default", override: Overrides = None, as_json: AsJson = False) -> None:
    """Show parts, rows and bytes, and the files that can be merged or deleted."""
    _show(open_container(profile, overrides=override, use=HomeUse.LOOK).maintenance.status(), as_json)


def compact(profile: ProfileName = "default", override: Overrides = None, as_json: AsJson = False) -> None:
    """Merge neighbouring small parts of a UTC month; rows and their order do not change.

    Ingest compacts automatically once lake.compact_parts consecutive small parts have accumulated, or two of a month
    that is over. A part is small if it is below lake.small_mb. With lake.max_age_days only parts of one day are merged.
    """
    _show(open_container(profile, overrides=override).maintenance.compact(), as_json)


def retain(
    max_age_days: Annotated[
        float | None,
        typer.Option(
            help="Drop parts whose newest row landed more than this many days ago; default: lake.max_age_days."
        ),
    ] = None,
    max_bytes: Annotated[
        int | None,
        whole_number(
            least=0,
            about="Then drop the oldest parts until the rest is at most this many bytes; default: lake.max_bytes.",
        ),
    ] = None,
    profile: ProfileName = "default",
    override: Overrides = None,
    as_json: AsJson = False,
) -> None:
    """Delete the oldest reports of the lake, down to a limit of age or size; this cannot be undone.

    Whole parts are dropped, so rows merged with younger ones stay up to a month longer, unless lake.max_age_days was
    set when they were merged. Snapshots stay usable. A dropped report that is delivered again is recognised as a
    duplicate for lake.remember_days (365) days.

    Example: [bold]simic lake retain --max-age-days 90 --max-bytes 50000000000[/bold]
    """
    limits = {"lake.max_age_days": max_age_days, "lake.max_bytes": max_bytes}
    container = open_container(profile, overrides=override, extra=limits)
    if container.config.lake.max_age_days is None and container.config.lake.max_bytes is None:
        raise ConfigError(
            "no limit is set: give --max-age-days or --max-bytes, or set lake.max_age_days or lake.max_bytes"
        )
    _show(container.maintenance.retain(), as_json)


def vacuum(
    grace_minutes: Annotated[
        float | None,
        number(
            least=0,
            about="Keep files that were replaced less than this many minutes ago; default: lake.grace_minutes.",
        ),
    ] = None,
    profile: ProfileName = "default",
    override: Overrides = None,
    as_json: AsJson = False,
) -> None:
    """Delete the files of merged and dropped parts, and the ids of reports dropped over lake.remember_days days ago.

    A report without such an id lands again if it is delivered again. Ingest runs this automatically. A query that runs
    longer than the grace period may fail and can be repeated.
    """
    container = open_container(profile, overrides=override, extra={"lake.grace_minutes": grace_minutes})
    _show(container.maintenance.vacuum(), as_json)


def _show(result: Contract, as_json: bool) -> None:
    emit(result, as_json, lambda console: console.print(_facts(result)))


def _facts(result: Contract) -> Table:
    table = Table(show_header=False, box=None, pad_edge=False, highlight=False)
    table.add_column(style="bold")
    table.add_column(overflow="fold")
    for name, value in result.model_dump(mode="json").items():
        table.add_row(name.replace("_", " "), cell("-" if value is None else value))
    return table
