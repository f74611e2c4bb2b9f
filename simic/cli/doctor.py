"""``simic doctor``: checks and repairs of everything in a home."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from simic.cli.console import EXIT_CODES, cell, emit
from simic.cli.options import AsJson, Overrides, ProfileName, open_container
from simic.contracts.results.lake import Health
from simic.runtime.home import HomeUse

if TYPE_CHECKING:
    from simic.contracts.results.lake import HealthReport

__all__ = ["FINDINGS", "add_to"]

FINDINGS = 5
"""Exit code if problems were found, or remain after a repair."""
STYLES = {"healthy": "green", "repaired": "green", "repairable": "yellow", "damaged": "bold red", "lost": "bold red"}


def add_to(app: typer.Typer) -> None:
    """Register the verb."""
    app.command("doctor", epilog=EXIT_CODES)(doctor)


def doctor(
    deep: Annotated[
        bool, typer.Option("--deep", help="Read every byte and verify all digests, also of registered policies.")
    ] = False,
    repair: Annotated[
        bool,
        typer.Option(
            "--repair",
            help="Remove leftovers of crashes; move damaged parts to data/damaged and return the original report "
            "files to the spool, so that the next ingest reads them again; rewrite MLflow's aliases, tags and run "
            "names from the ledgers.",
        ),
    ] = False,
    profile: ProfileName = "default",
    override: Overrides = None,
    as_json: AsJson = False,
) -> None:
    """Check everything in the home: ledgers, keys, lake, spool, snapshots, policies, MLflow, outbox, Redis.

    Without --repair it only adds triggers that MLflow's database lacks; a repair deletes nothing that was ever
    committed. If a repair returned report files to the spool, `simic ingest` reads them again; duplicates are
    recognised.
    """
    use = HomeUse.CHANGE if repair else HomeUse.LOOK
    from simic.app.checks.doctor import open_doctor

    container = open_container(profile, overrides=override, use=use)
    report = open_doctor(container).examine(is_deep=deep, is_repair=repair)
    emit(report, as_json, lambda console: _show(console, report))
    if not report.is_healthy:
        raise typer.Exit(FINDINGS)


def _show(console: Console, report: HealthReport) -> None:
    console.print(_table(report))
    problems = sum(check.health is not Health.HEALTHY for check in report.checks)
    console.print(f"{problems} of {len(report.checks)} checks found something" if problems else "no problems")


def _table(report: HealthReport) -> Table:
    table = Table("check", "health", "found", "remedy" if not report.is_repair else "done", box=SIMPLE_HEAD)
    for check in report.checks:
        health = Text(check.health.value, style=STYLES[check.health.value])
        table.add_row(cell(check.name), health, cell(check.found), cell(check.remedy))
    return table
