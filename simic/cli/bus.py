"""Verbs around the bus: what waits, what was spilled, what died, and giving that another life."""

from __future__ import annotations

from typing import Annotated

import typer

from simic.cli.edge import EXIT_CODES, emit
from simic.cli.options import AsJson, Overrides, ProfileName, open_app
from simic.cli.render import rows_table

__all__ = ["add_to"]

REPORTS = "tamiyo.field_reports"


def add_to(app: typer.Typer) -> None:
    """Register the verbs."""
    group = typer.Typer(
        help="Where reports travel: Redis where REDIS_URL is set, else the spool of the home.", no_args_is_help=True
    )
    group.command("status", epilog=EXIT_CODES)(status)
    group.command("forward", epilog=EXIT_CODES)(forward)
    group.command("dead-letters", epilog=EXIT_CODES)(dead_letters)
    app.add_typer(group, name="bus")


def status(profile: ProfileName = "default", override: Overrides = None, as_json: AsJson = False) -> None:
    """Topics, what waits on them, what was delivered and not acknowledged, dead letters, and what was spilled.

    Example: [bold]REDIS_URL=rediss://simic:password@host:6379/0 simic bus status[/bold]
    """
    rows = [topic._asdict() for topic in open_app(profile, overrides=override).bus_topics()]
    emit(rows, as_json, lambda console: console.print(rows_table(rows)))


def forward(
    limit: Annotated[
        int | None, typer.Option(min=1, help="At most so many files, the oldest first; default: all that wait.")
    ] = None,
    profile: ProfileName = "default",
    override: Overrides = None,
    as_json: AsJson = False,
) -> None:
    """Send what was spilled to the spool while Redis was away on to Redis, in order; lands nothing.

    The next put or ingest does the same by itself: this is for a machine that only produces. Exit code 4 if Redis is
    away; a file leaves the spool once Redis has answered for all of it.
    """
    done = open_app(profile, overrides=override).forward(limit)
    emit(done, as_json, lambda console: console.print("forwarded {forwarded} files, {waiting} wait".format(**done)))


def dead_letters(
    topic: Annotated[str, typer.Option(help="Whose dead letters.")] = REPORTS,
    limit: Annotated[int, typer.Option(min=1, help="At most so many, the oldest first.")] = 20,
    replay: Annotated[
        bool,
        typer.Option("--replay", help="Put all of them back on the topic, as if they were new."),
    ] = False,
    profile: ProfileName = "default",
    override: Overrides = None,
    as_json: AsJson = False,
) -> None:
    """Entries that could not be delivered, each with its reason; those that are whole can be put back.

    Reasons: malformed (no envelope), expired (older than its time to live), attempts (never acknowledged).
    """
    app = open_app(profile, overrides=override)
    if replay:
        done = {"topic": topic, "replayed": app.bus.replay(topic), "left": app.bus.status(topic).dead_letters}
        emit(done, as_json, lambda console: console.print("put back {replayed}, left {left}".format(**done)))
        return
    rows = app.dead_letters(topic, limit)
    emit(rows, as_json, lambda console: console.print(rows_table(rows) if rows else f"no dead letters of {topic}"))
