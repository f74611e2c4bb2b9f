"""The verb that does everything: ``simic run``."""

from __future__ import annotations

import os
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Any

import typer
from rich.console import Console

from simic.cli.edge import EXIT_CODES, emit, leave_on_interrupt, parse_overrides, stderr
from simic.cli.options import AsJson, Overrides, ProfileName, Seed, show_progress
from simic.cli.text import short
from simic.contracts.errors import ConfigError, GateRejected

if TYPE_CHECKING:
    from collections.abc import Callable

    from simic.contracts.receipts import RunReceipt
    from simic.runtime.settings import Home

__all__ = ["add_to"]

FLOW_GROUP, FLOW_NAME = "simic.flows", "retrain"
QUIET = {"PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL": "CRITICAL"}
"""In process, progress bars and our own messages tell the story; the run's log still has everything."""


def add_to(app: typer.Typer) -> None:
    """Register the verb."""
    app.command("run", epilog=EXIT_CODES)(run)


def run(profile: ProfileName = "default", seed: Seed = 0, override: Overrides = None, as_json: AsJson = False) -> None:
    """Collect, ingest, curate, train, rounds of own episodes, validate, gate, promote, publish.

    The first run starts from nothing; later ones start from the champion and replace it only if they are better.
    A run that was killed goes on at its last good stage when the same command is given again.
    """
    from simic.app.verdict import rejection
    from simic.runtime.settings import load_profile, resolve_home

    overrides = parse_overrides(override or ())
    load_profile(profile, overrides)
    home = resolve_home()
    leave_on_interrupt("interrupted; the same command goes on after the last finished stage")
    receipt: RunReceipt = _load_flow(home)(profile=profile, seed=seed, overrides=overrides, progress=show_progress())
    emit(receipt, as_json, lambda console: _show(console, receipt, home))
    if not receipt.decision.accepted:
        raise GateRejected(rejection(receipt.decision))


def _load_flow(home: Home) -> Callable[..., Any]:
    """The flow's entry point, loaded after its environment is set: Prefect reads its settings at import."""
    from simic.cli.services.stack import environment_for_flows
    from simic.runtime.telemetry import configure_logging

    home.create()
    configure_logging("WARNING")
    os.environ.update({name: value for name, value in QUIET.items() if name not in os.environ})
    environment = environment_for_flows(home)
    os.environ.clear()
    os.environ.update(environment)
    found = entry_points(group=FLOW_GROUP, name=FLOW_NAME)
    if not found:
        raise ConfigError(f"no entry point {FLOW_NAME} in group {FLOW_GROUP}: install Simic with `pip install -e .`")
    loaded: Callable[..., Any] = next(iter(found)).load()
    return loaded


def _show(console: Console, receipt: RunReceipt, home: Home) -> None:
    from simic.cli.render import decision_table, proof_table

    console.print(proof_table(receipt.validation))
    console.print(decision_table(receipt.decision))
    if receipt.version is not None:
        console.print(
            f"Promoted: models:/{receipt.version.name}@champion is version {receipt.version.semantic_version} "
            f"({short(receipt.version.digest)})",
            highlight=False,
        )
    else:
        console.print("Rejected: what was live stays live.")
    console.print(f"Policy: {receipt.trainings[-1].path}")
    for name, path in sorted(receipt.validation.figures.items()):
        console.print(f"Figure {name}: {path}")
    console.print(
        "Look closer: `make ui` or `simic ui` opens MLflow; `simic sql 'SELECT * FROM policies'`.", highlight=False
    )
    stderr().print(f"home: {home.root}")
