"""Verbs around the registry: promote, publish, roll back, verify."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from simic.cli.edge import EXIT_CODES, emit
from simic.cli.options import AsJson, Overrides, ProfileName, Seed, open_app
from simic.cli.render import decision_table, receipt_lines
from simic.cli.text import short
from simic.contracts.errors import GateRejected

__all__ = ["add_to"]

CHAMPION = "models:/tamiyo@champion"


def add_to(app: typer.Typer) -> None:
    """Register the verbs."""
    for verb in (promote, publish, rollback, verify):
        app.command(verb.__name__, epilog=EXIT_CODES)(verb)


def promote(
    validation: Annotated[Path | None, typer.Option(help="Receipt of validate; default: the newest.")] = None,
    profile: ProfileName = "default",
    seed: Seed = 0,
    override: Overrides = None,
    as_json: AsJson = False,
) -> None:
    """Judge a validated policy by the gate; register it, and make it the champion if it passed.

    With --json a rejection prints the gate's decision instead, and the exit code is 3.
    """
    from simic.app.verdict import rejection

    app = open_app(profile, seed, override)
    report = app.validation_at(validation)
    decision = app.decide(report)
    candidate = app.record(report, decision)
    if not decision.accepted:
        emit(decision, as_json, lambda console: console.print(decision_table(decision)))
        raise GateRejected(rejection(decision))
    version = app.promote(candidate, decision)
    emit(version, as_json, lambda console: console.print(decision_table(decision), receipt_lines(version)))


def publish(
    profile: ProfileName = "default", seed: Seed = 0, override: Overrides = None, as_json: AsJson = False
) -> None:
    """Tell production about the champion: a signed update on the bus, once per version and target."""
    receipt = open_app(profile, seed, override).publish_champion()
    emit(receipt, as_json, lambda console: console.print(receipt_lines(receipt)))


def rollback(
    reason: Annotated[str, typer.Option(help="Kept in the journal.")],
    profile: ProfileName = "default",
    seed: Seed = 0,
    as_json: AsJson = False,
) -> None:
    """Make the champion before this one the champion again."""
    receipt = open_app(profile, seed).rollback(reason)
    emit(receipt, as_json, lambda console: console.print(receipt_lines(receipt)))


def verify(
    reference: Annotated[
        str, typer.Argument(help="models:/tamiyo@champion, models:/tamiyo/3, or a directory.")
    ] = CHAMPION,
    as_json: AsJson = False,
) -> None:
    """Check digest and signature of a policy, byte by byte; exit code 1 if anything differs."""
    found = open_app().verify(reference)
    facts = {"reference": reference, "digest": found.digest, "key_id": found.key_id, "ok": True}
    line = f"ok: {reference} is {short(found.digest)}, signed by {found.key_id}"
    emit(facts, as_json, lambda console: console.print(line, markup=False))
