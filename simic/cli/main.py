"""The ``simic`` command."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

import simic
from simic.cli import bus, doctor, lake, loop, queries, registrar, snapshots, stages, system, watch
from simic.cli.edge import DEBUG_VARIABLE, EXIT_CODES, errors_become_exit_codes, stdout

__all__ = ["app", "main"]

app = typer.Typer(
    name="simic",
    help="The offline factory that turns field reports from growing networks into better, safer controllers.",
    epilog=EXIT_CODES,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)


def _show_version(wanted: bool) -> None:
    if wanted:
        from simic.runtime.code_version import code_version

        stdout().print(f"simic {simic.__version__} ({code_version()})", highlight=False)
        raise typer.Exit


@app.callback()
def _root(
    home: Annotated[
        Path | None,
        typer.Option("--home", help="Where data/ and mlruns/ live; default: SIMIC_HOME, or the checkout around here."),
    ] = None,
    debug: Annotated[bool, typer.Option("--debug", help="Show tracebacks.")] = False,
    version: Annotated[  # noqa: ARG001 - handled by its callback
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    # Both travel by environment, so that worker processes see them too.
    if home is not None:
        os.environ["SIMIC_HOME"] = str(home.absolute())
    if debug:
        os.environ[DEBUG_VARIABLE] = "1"


for room in (loop, stages, snapshots, registrar, queries, lake, bus, doctor, watch, system):
    room.add_to(app)


def main() -> None:
    """Entry point of the console script."""
    # The command underneath is called, since calling the app would put Typer's own hook before ours.
    command = typer.main.get_command(app)
    with errors_become_exit_codes():
        command(prog_name="simic")
