"""``simic timeline``: a reported episode as a picture."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from simic.cli.console import EXIT_CODES, emit
from simic.cli.options import AsJson, Overrides, ProfileName, open_container
from simic.runtime.home import HomeUse

__all__ = ["add_to"]


def add_to(app: typer.Typer) -> None:
    """Register the verb."""
    app.command("timeline", epilog=EXIT_CODES)(timeline)


def timeline(
    plot: Annotated[Path, typer.Option(metavar="FILE", help="Where to write the picture, as .png.")],
    run: Annotated[
        str,
        typer.Argument(
            metavar="[RUN]", help="First characters of the episode's run_id; default: the episode that ended last."
        ),
    ] = "",
    profile: ProfileName = "default",
    override: Overrides = None,
    as_json: AsJson = False,
) -> None:
    """Draw a landed episode: decisions, stages of each slot, accuracy.

    It needs the field reports of `simic ingest` only, so it also draws what grew in a training loop of your own. Of
    several episodes whose id begins with RUN it draws the newest. With --json it also prints the episode.

    Example: [bold]simic timeline --plot grown.png[/bold]
    """
    from simic.app.display.timelines import check_plot, draw_reported

    check_plot(plot)
    container = open_container(profile, 0, override, use=HomeUse.LOOK)
    record = draw_reported(container, run, plot)
    emit(record, as_json, lambda console: console.print(f"timeline: {plot}", highlight=False))
