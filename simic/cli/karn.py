"""``simic karn``: train Karn, the controller that proposes blueprints."""

from __future__ import annotations

import typer

from simic.cli.console import EXIT_CODES, LOADING_TORCH, emit, working
from simic.cli.options import AsJson, Overrides, ProfileName, Seed, SnapshotName, open_container
from simic.cli.tables import receipt_lines

__all__ = ["add_to"]

HELP = """Karn, the second controller: it proposes which blueprint suits a slot of a host.

A policy consults it where it is named with +karn, as in simic compare champion champion+karn, or the promoted one with
-o controller.karn=consult. Judgements of policies try the policy alone. With --model karn, the verbs validate, stage,
promote, publish and rollback work on Karn."""


def add_to(app: typer.Typer) -> None:
    """Register the verbs of `simic karn`."""
    group = typer.Typer(help=HELP, no_args_is_help=True)
    group.command("train", epilog=EXIT_CODES)(train)
    app.add_typer(group, name="karn")


def train(
    snapshot: SnapshotName = None,
    profile: ProfileName = "default",
    seed: Seed = 0,
    override: Overrides = None,
    as_json: AsJson = False,
) -> None:
    """Train Karn on the germinations of a snapshot and seal it in data/karn.

    It learns from branches that germinate in one slot and differ in the blueprint, and from germinations of ordinary
    episodes whose blueprint was drawn. The receipt has regrets on branches of held-out hosts, in points: of Karn, of
    the one ranking of blueprints that is best for all hosts (fixed), and of a uniform choice. A killed training begins
    again; equal snapshot, settings and seed give an equal digest.

    Example: [bold]simic karn train && simic compare champion champion+karn --split validation[/bold]
    """
    container = open_container(profile, seed, override)
    with working(LOADING_TORCH):
        from simic.app import artifacts, karn

    receipt = karn.train(container, artifacts.resolve_snapshot(container, snapshot))
    emit(receipt, as_json, lambda console: console.print(receipt_lines(receipt)))
