"""``simic decide``: one decision of a policy, for programs in other languages."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from simic.cli.console import EXIT_CODES, emit
from simic.cli.options import AsJson, PolicyName, TrustedKeys
from simic.contracts.errors import ConfigError, ContractError
from simic.contracts.settings.run import IngestConfig

if TYPE_CHECKING:
    from rich.console import Console

    from simic.api.explanation import Explanation
    from simic.contracts.actions import Action

__all__ = ["add_to"]

STDIN = "-"
MOST_BYTES = IngestConfig().max_report_bytes
"""Largest state; a report of this size is the largest that ingestion takes."""
_FIELDS = ("state", "available")


def add_to(app: typer.Typer) -> None:
    """Register the verb."""
    app.command("decide", epilog=EXIT_CODES)(decide)


def decide(
    policy: PolicyName,
    state: Annotated[
        str, typer.Option("--state", metavar="FILE", help="JSON file with the state and the legal choices; - is stdin.")
    ],
    trusted_keys: TrustedKeys = None,
    karn: Annotated[
        str | None,
        typer.Option(
            metavar="KARN",
            help="Karn that chooses the blueprint: champion, the first 8 or more characters of a digest, or a path.",
        ),
    ] = None,
    explain: Annotated[
        bool,
        typer.Option("--explain", help="Also print the shares of each head, the value, and what else is likely."),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Print the action of a policy for one state.

    FILE holds one JSON object with the fields `state` and `available` of a field report; a whole report is accepted too
    (`simic schema FieldReport --example` prints one). available.slot has one list
    per operation, with one flag per slot.

    The operation is drawn with the policy's probabilities, all else is its most likely choice. The draw is computed
    from policy and FILE, so the same state gives the same action. --json prints the action as a field report has it;
    with --explain the explanation, which holds it in the field `action`.

    Example: [bold]simic decide champion --state state.json --json[/bold]

    A state that violates the contract ends with exit code 1, an unknown policy with 2.
    """
    from simic.api.home import Home

    keys = Home() if trusted_keys is None else trusted_keys
    asked = _read(state)
    from simic.api.policy import load_policy  # it loads torch, which a wrong file need not wait for

    explanation = load_policy(policy, trusted_keys=keys, karn=karn).explain(asked["state"], asked["available"])
    answer = explanation if explain else explanation.action
    emit(answer, as_json, lambda console: _show(console, explanation, is_full=explain))


def _read(name: str) -> dict[str, Any]:
    """Return the JSON object in a file or on standard input, with at least ``state`` and ``available``."""
    content = _bytes_of(name)
    if len(content) > MOST_BYTES:
        raise ContractError(f"{name}: expected at most {MOST_BYTES} bytes, found more")
    from simic.api.wire import parse_object  # it loads the packages of ingestion

    asked = parse_object(content, name)
    if not set(_FIELDS) <= set(asked):
        raise ContractError(
            f"{name}: expected an object with the fields {' and '.join(_FIELDS)}, found {sorted(asked)}"
        )
    return asked


def _bytes_of(name: str) -> bytes:
    if name == STDIN:
        return sys.stdin.buffer.read(MOST_BYTES + 1)
    try:
        with Path(name).open("rb") as file:
            return file.read(MOST_BYTES + 1)
    except OSError as error:
        raise ConfigError(f"--state: cannot read {name}: {error.strerror}") from error


def _show(console: Console, explanation: Explanation, *, is_full: bool) -> None:
    console.print(_words(explanation.action))
    if not is_full:
        return
    for measurement in explanation.out_of_range or ():
        console.print(f"unlike the policy's training: {measurement}")
    console.print(f"value: {explanation.value:.2f} points of return from here on")
    for head, choices in explanation.heads.items():
        shares = ", ".join(f"{choice.choice} {choice.probability:.1%}" for choice in choices)
        console.print(f"{head.value}: {shares}")
    for other in explanation.alternatives:
        console.print(f"{other.probability:6.1%}  {_words(other.action)}")


def _words(action: Action) -> str:
    """Return an action on one line, such as ``GERMINATE slot 0, blueprint dense, tempo 5``."""
    values = action.model_dump(mode="json", exclude_none=True, exclude={"op"})
    factors = ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in values.items())
    return f"{action.op.value} {factors}".rstrip()
