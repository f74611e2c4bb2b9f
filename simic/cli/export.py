"""``simic export``: a policy as a file that runs without Simic."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from simic.cli.console import EXIT_CODES, LOADING_TORCH, emit, working
from simic.cli.options import AsJson, PolicyName, TrustedKeys
from simic.contracts.errors import ConfigError
from simic.runtime.files import atomic_write, check_writable, os_error_as_transient

__all__ = ["add_to"]


def add_to(app: typer.Typer) -> None:
    """Register `simic export`, with the exit codes of most verbs."""
    app.command("export", epilog=EXIT_CODES)(export)


def export(
    policy: PolicyName,
    torch_export: Annotated[
        Path, typer.Option("--torch-export", metavar="FILE", help="Where to write the program, as .pt2; replaced.")
    ],
    trusted_keys: TrustedKeys = None,
    as_json: AsJson = False,
) -> None:
    """Write a policy as a torch.export program that runs with torch alone.

    Beside FILE lies a file of the same name with the ending .json: inputs and outputs, and the formulas by which the
    inputs are made of a state. docs/api.md shows a program that uses both. Neither file is signed: send them over a
    channel that you trust.

    Example: [bold]simic export champion --torch-export tamiyo.pt2[/bold]
    """
    if torch_export.suffix != ".pt2":
        raise ConfigError(f"--torch-export: expected a file that ends with .pt2, found {torch_export}")
    check_writable(torch_export, "--torch-export")
    with working(LOADING_TORCH):
        from simic.api.home import Home
        from simic.api.policy import load_policy
        from simic.api.portable import portable_files

    loaded = load_policy(policy, trusted_keys=Home() if trusted_keys is None else trusted_keys)
    program, inputs = portable_files(loaded)
    beside = torch_export.with_suffix(".json")
    with os_error_as_transient(f"write {torch_export}"):
        atomic_write(beside, json.dumps(inputs, indent=1).encode() + b"\n")
        atomic_write(torch_export, program)
    facts = {"policy": loaded.digest, "program": str(torch_export), "inputs": str(beside), "bytes": len(program)}
    emit(facts, as_json, lambda console: console.print(f"wrote {torch_export} and {beside}", markup=False))
