"""The ``simic`` command."""

from __future__ import annotations

import inspect
import os
import sys
from typing import Annotated

import typer

import simic
from simic.cli import (
    ab,
    bus,
    check_reports,
    compare,
    decide,
    diff_policies,
    doctor,
    evaluate,
    export,
    follow,
    karn,
    keys,
    lake,
    proof,
    registry,
    rollout,
    run,
    snapshots,
    sql,
    stages,
    status,
    timeline,
    trials,
    watch,
)
from simic.cli.console import DEBUG_VARIABLE, EXIT_CODES, errors_become_exit_codes, stdout
from simic.cli.home_option import HomeOption, give_home_option
from simic.cli.services import commands
from simic.cli.streams import check_words, own_streams
from simic.runtime.code_version import code_version

__all__ = ["app", "main"]

PANELS = {
    "Begin here": ("init", "run", "status", "watch", "sql"),
    "The stages of a run": (
        "collect",
        "ingest",
        "curate",
        "train",
        "validate",
        "stage",
        "promote",
        "publish",
        "rollback",
    ),
    "Compare": ("trials", "compare", "ab", "diff-policies", "evaluate", "proof", "plans"),
    "Inspect": ("timeline", "decide", "schema", "verify", "check-reports", "karn", "snapshots"),
    "Use and publish a policy": ("export", "follow", "rollout"),
    "Services and the home": ("up", "down", "ui", "nightly", "doctor", "lake", "bus", "keys"),
}
"""Groups of verbs in the order of ``--help``; within a group, verbs that have verbs of their own come last."""


app = typer.Typer(
    name="simic",
    help="Train controllers that grow neural networks, and compare them on held-out networks.\n\n"
    "`simic run` makes a first policy; `simic watch` shows a network grow.",
    epilog=EXIT_CODES,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)


def _show_version(wanted: bool) -> None:
    if wanted:
        stdout().print(f"simic {simic.__version__} ({code_version()})", highlight=False)
        raise typer.Exit


@app.callback()
def _root(
    home: HomeOption = None,  # noqa: ARG001 - handled by its callback
    debug: Annotated[bool, typer.Option("--debug", help="Show tracebacks.")] = False,
    version: Annotated[  # noqa: ARG001 - handled by its callback
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    # Home and debug flag are passed by environment, so that worker processes see them too.
    if debug:
        os.environ[DEBUG_VARIABLE] = "1"


def _join_help_lines(app: typer.Typer) -> None:
    """Make each paragraph of a help text one line: Typer keeps the line ends of all paragraphs but the first."""
    for command in app.registered_commands:
        command.help = _joined(command.help or inspect.getdoc(command.callback) or "")
    for group in app.registered_groups:
        if group.typer_instance is not None:
            group.typer_instance.info.help = _joined(str(group.typer_instance.info.help))
            _join_help_lines(group.typer_instance)


def _group_verbs(app: typer.Typer) -> None:
    """Show the verbs of ``--help`` in groups; a verb without a group is an error here."""
    panel_of = {verb: panel for panel, verbs in PANELS.items() for verb in verbs}
    for command in app.registered_commands:
        command.rich_help_panel = panel_of.pop(str(command.name))
    for group in app.registered_groups:
        group.rich_help_panel = panel_of.pop(str(group.name))
    order = [verb for verbs in PANELS.values() for verb in verbs]
    app.registered_commands.sort(key=lambda command: order.index(str(command.name)))
    if panel_of:
        raise ValueError(f"PANELS names verbs that do not exist: {sorted(panel_of)}")


def _joined(text: str) -> str:
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in inspect.cleandoc(text).split("\n\n"))


for verbs in (
    run,
    stages,
    karn,
    check_reports,
    snapshots,
    registry,
    status,
    rollout,
    trials,
    compare,
    ab,
    diff_policies,
    evaluate,
    proof,
    sql,
    lake,
    bus,
    keys,
    doctor,
    watch,
    timeline,
    decide,
    export,
    follow,
    commands,
):
    verbs.add_to(app)
give_home_option(app)
_join_help_lines(app)
_group_verbs(app)


def main() -> None:
    """Entry point of the console script."""
    # The Click command is called directly, because calling the app would install Typer's exception hook.
    command = typer.main.get_command(app)
    with errors_become_exit_codes(), own_streams():
        check_words(sys.argv[1:])
        command(prog_name="simic")
