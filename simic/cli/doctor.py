"""The verb that looks at what a home holds and says what is wrong."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer
from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from simic.cli.edge import EXIT_CODES, emit
from simic.cli.options import AsJson, Overrides, ProfileName, open_app
from simic.cli.text import cell

if TYPE_CHECKING:
    from simic.contracts.lake import HealthReport

__all__ = ["FINDINGS", "add_to"]

FINDINGS = 5
"""Exit code where something was found, or is left after a repair."""
STYLES = {"healthy": "green", "repaired": "green", "repairable": "yellow", "damaged": "bold red", "lost": "bold red"}


def add_to(app: typer.Typer) -> None:
    """Register the verb."""
    epilog = f"{EXIT_CODES[:-1]}, {FINDINGS} something was found, or is left after --repair."
    app.command("doctor", epilog=epilog)(doctor)


def doctor(
    deep: Annotated[bool, typer.Option("--deep", help="Read every byte, take digests, ask the registry.")] = False,
    repair: Annotated[
        bool,
        typer.Option(
            "--repair",
            help="Tidy up what crashes left; take damaged parts out of the lake, keep their files under data/damaged, "
            "and put the deliveries they came from back on the spool.",
        ),
    ] = False,
    profile: ProfileName = "default",
    override: Overrides = None,
    as_json: AsJson = False,
) -> None:
    """Is everything as it was committed? Ledgers, parts, ids, orphans, spool, snapshots, champion, Redis.

    Changes nothing without --repair, and deletes nothing that was ever committed with it. After a repair that put
    deliveries back, `simic ingest` lands them; what has landed already is recognised.
    """
    report = open_app(profile, overrides=override).doctor().examine(is_deep=deep, is_repair=repair)
    emit(report, as_json, lambda console: console.print(_table(report)))
    if not report.is_healthy:
        raise typer.Exit(FINDINGS)


def _table(report: HealthReport) -> Table:
    table = Table("check", "health", "found", "remedy" if not report.is_repair else "done", box=SIMPLE_HEAD)
    for check in report.checks:
        health = Text(check.health.value, style=STYLES[check.health.value])
        table.add_row(cell(check.name), health, cell(check.found), cell(check.remedy))
    return table
