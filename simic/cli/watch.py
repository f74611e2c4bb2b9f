"""``simic watch``: one host, epoch by epoch, on the terminal."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.live import Live
from rich.text import Text

from simic.cli import completion
from simic.cli.console import EXIT_CODES, emit, stderr, stdout
from simic.cli.episode_table import attribution_lines, episode_table, live_view, plain_epoch, plain_summary, summary
from simic.cli.options import (
    CONTROLLER_NAMES,
    POLICY_NAMES,
    AsJson,
    Overrides,
    ProfileName,
    Seed,
    SetName,
    number,
    open_container,
    whole_number,
)
from simic.contracts.names import KEY_LIMIT
from simic.runtime.home import HomeUse

if TYPE_CHECKING:
    from simic.app.display.live_episode import LiveEpisode
    from simic.contracts.episode import EpochRecord

__all__ = ["add_to"]

LAST_KEY = KEY_LIMIT - 1
LONGEST_DELAY_S = 60


def add_to(app: typer.Typer) -> None:
    """Register the verb."""
    app.command("watch", epilog=EXIT_CODES)(watch)


def watch(
    controller: Annotated[
        str | None,
        typer.Option(
            help=f"{CONTROLLER_NAMES}, or a policy: {POLICY_NAMES}; default: the champion, or heuristic if there is "
            "none.",
            autocompletion=completion.controllers,
        ),
    ] = None,
    key: Annotated[
        int | None,
        whole_number(
            least=0,
            most=LAST_KEY,
            about="Key of the host, from any split; default: the first host of the test split.",
        ),
    ] = None,
    world_set: SetName = None,
    delay: Annotated[
        float,
        number(least=0, most=LONGEST_DELAY_S, about="Pause in seconds after each epoch; on a terminal only."),
    ] = 0.15,
    attribution: Annotated[
        bool,
        typer.Option(
            "--attribution",
            help="Also attribute the final accuracy to the active seeds (Shapley values, and what pairs of them add).",
        ),
    ] = False,
    profile: ProfileName = "default",
    seed: Seed = 0,
    override: Overrides = None,
    as_json: AsJson = False,
) -> None:
    """Grow one host and show every epoch, next to the same host without growth.

    Example: [bold]simic watch --controller oracle --key 12 --delay 0.5[/bold]

    Each row is one epoch: the decision; for every slot stage, blueprint, alpha (weight of the seed in the forward pass)
    and contribution (blank until measured); accuracy and loss. A row is red if the governor ended the episode because
    the host diverged or collapsed. At the end it names what of the host was unlike the training of the policy, as
    `simic.Policy.explain` does. In a pipe it prints a plain line per epoch, with --json one document. Nothing is put on
    the bus, and the return equals that of `simic trials` for the same host.
    """
    named = [] if controller is None else [controller]
    container = open_container(profile, seed, override, {"world.set": world_set}, use=HomeUse.LOOK, controllers=named)
    from simic.app.display.live_episode import LiveEpisode

    watched = LiveEpisode(container, controller, key)
    if as_json:
        for _ in watched.epochs():
            pass
        emit(watched.attributed_report() if attribution else watched.report(), True, lambda _: None)
        return
    if controller is None and container.policies.champion_digest() is None:
        stderr().print(f"this home has no champion, so {watched.controller} acts; --controller names another")
    console = stdout()
    if console.is_terminal and not console.is_dumb_terminal:
        _show(watched, Console(highlight=False), delay)
    else:
        _tell(watched, console)
    if attribution:
        for line in attribution_lines(watched.attributed_report().attribution):
            _say(console, line)


def _tell(watched: LiveEpisode, console: Console) -> None:
    """Print lines as they arrive."""
    _say(console, _title(watched))
    for record in watched.epochs():
        _say(console, plain_epoch(record))
    for line in plain_summary(watched.report()):
        _say(console, line)


def _say(console: Console, line: str) -> None:
    console.print(line, markup=False)


def _show(watched: LiveEpisode, console: Console, delay: float) -> None:
    """Show a table that grows in place and stays on the screen when the episode ends or is interrupted."""
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


def _title(watched: LiveEpisode) -> str:
    host, split = watched.host, watched.split.value
    who = f"{watched.controller} on host {host.key}"
    return f"{who}: family {host.family} of set {host.set}, {split} split, {watched.horizon} epochs"
