"""The verb that shows one host growing: ``simic watch``."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.live import Live
from rich.text import Text

from simic.cli.edge import EXIT_CODES, emit, stdout
from simic.cli.episode_view import episode_table, live_view, plain_epoch, plain_summary, summary
from simic.cli.options import AsJson, Overrides, ProfileName, Seed, open_app

if TYPE_CHECKING:
    from simic.app.watching import Watch
    from simic.contracts.episode import EpochRecord

__all__ = ["add_to"]

LAST_KEY = 2**31 - 1
LONGEST_DELAY_S = 60.0


def add_to(app: typer.Typer) -> None:
    """Register the verb."""
    app.command("watch", epilog=EXIT_CODES)(watch)


def watch(
    controller: Annotated[
        str | None,
        typer.Option(
            help="wait, random, explore, heuristic, blind, oracle, expert, champion, or a sealed policy's directory; "
            "default: the champion, or heuristic where there is none."
        ),
    ] = None,
    key: Annotated[
        int | None,
        typer.Option(
            min=0,
            max=LAST_KEY,
            help="Which host, of any split; default: the first of the test split, from which no policy learns.",
        ),
    ] = None,
    world_set: Annotated[str | None, typer.Option("--set", help="The set of hosts; default: the profile's.")] = None,
    delay: Annotated[
        float,
        typer.Option(
            min=0.0, max=LONGEST_DELAY_S, metavar="SECONDS", help="Pause after each epoch; on a terminal only."
        ),
    ] = 0.15,
    profile: ProfileName = "default",
    seed: Seed = 0,
    override: Overrides = None,
    as_json: AsJson = False,
) -> None:
    """Grow one host and look on, epoch by epoch, beside the same host never grown.

    Example: [bold]simic watch --controller oracle --key 12 --delay 0.5[/bold]

    An epoch is a row: what was decided, every slot's stage, blueprint, alpha and contribution (blank until it was
    measured), accuracy and loss; what the governor stops is red. Into a pipe it goes as a plain line per epoch, with
    --json as one document. Nothing is reported to the bus, and the return is the one that `simic trials` finds for the
    same host.
    """
    app = open_app(profile, seed, override, {} if world_set is None else {"world.set": world_set})
    watched = app.watch(controller, key)
    if as_json:
        for _ in watched.epochs():
            pass
        emit(watched.report(), True, lambda _: None)
        return
    console = stdout()
    if console.is_terminal and not console.is_dumb_terminal:
        _show(watched, Console(highlight=False), delay)
    else:
        _tell(watched, console)


def _tell(watched: Watch, console: Console) -> None:
    """Lines, as they come."""
    _say(console, _title(watched))
    for record in watched.epochs():
        _say(console, plain_epoch(record))
    for line in plain_summary(watched.report()):
        _say(console, line)


def _say(console: Console, line: str) -> None:
    console.print(line, markup=False)


def _show(watched: Watch, console: Console, delay: float) -> None:
    """A table that grows in place; what was seen stays on the screen, however it ends."""
    epochs: list[EpochRecord] = []
    title = _title(watched)
    try:
        with Live(console=console, auto_refresh=False, transient=True) as live:
            for record in watched.epochs():
                epochs.append(record)
                live.update(live_view(epochs, watched.wait, watched.horizon, console, title), refresh=True)
                time.sleep(delay)
    finally:
        if epochs:
            console.print(Text(title, style="bold"), episode_table(epochs, watched.wait, console.width))
    console.print(summary(watched.report(), console.width))


def _title(watched: Watch) -> str:
    host, split = watched.host, watched.split.value
    who = f"{watched.controller} on host {host.key}"
    return f"{who}: family {host.family} of set {host.set}, {split} split, {watched.horizon} epochs"
