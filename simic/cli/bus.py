"""``simic bus``: status, forward spooled files, list and replay dead letters."""

from __future__ import annotations

from typing import Annotated

import typer

from simic.cli.console import EXIT_CODES, emit
from simic.cli.options import AsJson, Overrides, ProfileName, open_container, whole_number
from simic.cli.tables import rows_table
from simic.contracts.errors import ConfigError
from simic.contracts.names import FIELD_REPORTS, TOPICS
from simic.runtime.home import HomeUse

__all__ = ["add_to"]


def add_to(app: typer.Typer) -> None:
    """Register the verbs."""
    group = typer.Typer(
        help="The bus that transports reports: by default the spool, a folder of the home; REDIS_URL is the address of "
        "another bus.",
        no_args_is_help=True,
    )
    group.command("status", epilog=EXIT_CODES)(status)
    group.command("forward", epilog=EXIT_CODES)(forward)
    group.command("dead-letters", epilog=EXIT_CODES)(dead_letters)
    app.add_typer(group, name="bus")


def status(profile: ProfileName = "default", override: Overrides = None, as_json: AsJson = False) -> None:
    """Show the entries or files of each topic.

    length: on the bus; undelivered: not read yet; pending: read, not acknowledged; dead_letters: not deliverable;
    spilled: files in the spool that wait for Redis; aside: files of the spool that could not be read.

    Example: [bold]REDIS_URL=rediss://simic:password@host:6379/0 simic bus status[/bold]
    """
    from simic.app.bus_admin import list_topics

    bus = open_container(profile, overrides=override, use=HomeUse.LOOK).open_bus()
    rows = [topic._asdict() for topic in list_topics(bus)]
    emit(rows, as_json, lambda console: console.print(rows_table(rows)))


def forward(
    limit: Annotated[
        int | None, whole_number(least=1, about="Largest number of files, oldest first; default: all.")
    ] = None,
    profile: ProfileName = "default",
    override: Overrides = None,
    as_json: AsJson = False,
) -> None:
    """Send to Redis, in order, the files that were spooled during an outage; ingests nothing.

    The next collect, publish or ingest also forwards them. Run this verb where none of these follows. The exit code is
    4 if Redis is unavailable. A file is deleted from the spool after Redis has acknowledged all of it.
    """
    from simic.app.bus_admin import forward

    container = open_container(profile, overrides=override)
    done = forward(container.bus_spec, limit, container.progress)
    emit(done, as_json, lambda console: console.print("forwarded {forwarded} files, {waiting} wait".format(**done)))


def dead_letters(
    topic: Annotated[str, typer.Option(help="Topic of the dead letters.")] = FIELD_REPORTS,
    limit: Annotated[int, whole_number(least=1, about="Largest number of dead letters, oldest first.")] = 20,
    replay: Annotated[
        bool,
        typer.Option(
            "--replay", help="Put every intact dead letter back on the topic as a new entry, regardless of --limit."
        ),
    ] = False,
    profile: ProfileName = "default",
    override: Overrides = None,
    as_json: AsJson = False,
) -> None:
    """List the entries that could not be delivered, with the reason; intact entries can be replayed.

    Reasons: malformed (no envelope), expired (older than its time to live), attempts (delivered too
    often without acknowledgement).
    """
    from simic.app.bus_admin import list_dead_letters

    if topic not in TOPICS:
        raise ConfigError(f"unknown topic {topic!r}; topics: {', '.join(TOPICS)}")
    bus = open_container(profile, overrides=override, use=HomeUse.CHANGE if replay else HomeUse.LOOK).open_bus()
    if replay:
        done = {"topic": topic, "replayed": bus.replay(topic), "left": bus.status(topic).dead_letters}
        emit(done, as_json, lambda console: console.print("put back {replayed}, left {left}".format(**done)))
        return
    rows = list_dead_letters(bus, topic, limit)
    emit(rows, as_json, lambda console: console.print(rows_table(rows) if rows else f"no dead letters of {topic}"))
