"""One verb per stage; each takes what is named, or else the newest receipt of the stage before."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from simic.cli.edge import EXIT_CODES, emit, stderr
from simic.cli.hostkeys import parse_host_keys
from simic.cli.options import AsJson, Overrides, ProfileName, Seed, open_app
from simic.cli.render import receipt_lines

__all__ = ["add_to"]


def add_to(app: typer.Typer) -> None:
    """Register the verbs."""
    for verb in (collect, ingest, curate, train, validate):
        app.command(verb.__name__, epilog=EXIT_CODES)(verb)


def collect(
    controller: Annotated[
        str,
        typer.Option(
            help="wait, random, explore, heuristic, blind, oracle, expert, champion, or a sealed policy's directory."
        ),
    ] = "explore",
    host_keys: Annotated[
        str | None,
        typer.Option(
            help="A:B (without B), A,B,C or a mix, of any split; default: training hosts, others after each collection."
        ),
    ] = None,
    world_set: Annotated[str | None, typer.Option("--set", help="The set of hosts; default: the profile's.")] = None,
    spool: Annotated[Path | None, typer.Option(help="Directory of the bus; default: data/spool of the home.")] = None,
    plot: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE.png",
            help="Also draw what was done to one of these hosts per family: slots, stages, alpha, decisions, accuracy.",
        ),
    ] = None,
    profile: ProfileName = "default",
    seed: Seed = 0,
    override: Overrides = None,
    as_json: AsJson = False,
) -> None:
    """Grow hosts under a controller and report every decision to the bus.

    Example: [bold]simic collect --controller heuristic --host-keys 0:50 --plot heuristic.png[/bold]
    """
    extra = {} if world_set is None else {"world.set": world_set}
    keys = None if host_keys is None else parse_host_keys(host_keys)
    app = open_app(profile, seed, override, extra, spool)
    receipt = app.collect(controller, keys, plot)
    emit(receipt, as_json, lambda console: console.print(receipt_lines(receipt)))
    if plot is not None:
        stderr().print(f"timeline: {plot}")


def ingest(
    spool: Annotated[Path | None, typer.Option(help="Directory of the bus; default: data/spool of the home.")] = None,
    profile: ProfileName = "default",
    seed: Seed = 0,
    override: Overrides = None,
    as_json: AsJson = False,
) -> None:
    """Land what waits on the bus as Parquet; refuse what is malformed, with its reason.

    The receipt counts what became of each report; data/runs/ingest/<UTC day>.jsonl has the same counts batch by batch.
    """
    receipt = open_app(profile, seed, override, spool=spool).ingest()
    emit(receipt, as_json, lambda console: console.print(receipt_lines(receipt)))


def curate(
    reward: Annotated[
        str | None,
        typer.Option(help="Reward family: basic, shaped, sparse or minimal; default: the profile's."),
    ] = None,
    profile: ProfileName = "default",
    seed: Seed = 0,
    override: Overrides = None,
    as_json: AsJson = False,
) -> None:
    """Turn landed experience into an immutable snapshot, with rewards computed anew.

    Nothing is collected again: the same experience gives one snapshot per reward family. Trials judge by basic points
    whatever a learner is shown.

    Example: [bold]simic curate --reward shaped -o curate.reward.potential=3[/bold]
    """
    extra = {} if reward is None else {"curate.reward.family": reward}
    receipt = open_app(profile, seed, override, extra).curate()
    emit(receipt, as_json, lambda console: console.print(receipt_lines(receipt)))


def train(
    snapshot: Annotated[
        Path | None, typer.Option(help="Snapshot directory or curate receipt; default: the newest.")
    ] = None,
    start: Annotated[
        str, typer.Option(help="champion, nothing, or a sealed policy's directory; champion falls back to nothing.")
    ] = "champion",
    profile: ProfileName = "default",
    seed: Seed = 0,
    override: Overrides = None,
    as_json: AsJson = False,
) -> None:
    """Learn a policy from a snapshot."""
    app = open_app(profile, seed, override)
    receipt = app.train(app.snapshot_at(snapshot), app.start_point(start))
    emit(receipt, as_json, lambda console: console.print(receipt_lines(receipt)))


def validate(
    policy: Annotated[
        Path | None, typer.Option(help="Sealed policy directory or train receipt; default: the newest.")
    ] = None,
    profile: ProfileName = "default",
    seed: Seed = 0,
    override: Overrides = None,
    as_json: AsJson = False,
) -> None:
    """Try a policy on held-out hosts against every baseline and the champion."""
    from simic.cli.render import proof_table

    app = open_app(profile, seed, override)
    receipt = app.validate(app.training_at(policy), app.champion_digest())
    emit(receipt, as_json, lambda console: console.print(proof_table(receipt)))
