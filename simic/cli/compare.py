"""``simic compare``: whether one controller or policy is better than another."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from simic.cli import completion
from simic.cli.console import EXIT_CODES, emit
from simic.cli.options import (
    CONTROLLER_NAMES,
    POLICY_NAMES,
    AsJson,
    Overrides,
    ProfileName,
    Seed,
    SetName,
    SplitName,
    open_container,
    parse_host_keys,
)
from simic.cli.tables import cost_table, numbers_table
from simic.contracts.errors import ConfigError
from simic.contracts.splits import Split
from simic.validation.table import Table

if TYPE_CHECKING:
    from simic.contracts.comparison import Comparison
    from simic.contracts.receipts import Estimate

__all__ = ["add_to"]

_HEADER = ("controller", "against", "verdict", "difference", "adjusted p", "improves", "detectable")
_NOTE = (
    "difference: mean return, paired by host, in points, with its interval. adjusted p: sign flips of the paired "
    "differences, adjusted for all pairs by Holm's method; up to 0.05 a difference is shown. improves: probability "
    "that a return of the controller exceeds one of the other, without pairing. detectable: smallest difference that "
    "these hosts show with 80 % power, before the adjustment. The interval compares hosts within their families; p and "
    "detectable take all hosts together, which is more cautious where families differ."
)


def add_to(app: typer.Typer) -> None:
    """Register the verb."""
    app.command("compare", epilog=EXIT_CODES)(compare)


def compare(
    arms: Annotated[
        list[str],
        typer.Argument(
            help=f"Two or more controllers ({CONTROLLER_NAMES}) or policies ({POLICY_NAMES}).",
            autocompletion=completion.controller_list,
        ),
    ],
    host_keys: Annotated[
        str | None, typer.Option(help="Host keys, from any split: A:B (B excluded), A,B,C, or a mix.")
    ] = None,
    split: SplitName = None,
    world_set: SetName = None,
    profile: ProfileName = "default",
    seed: Seed = 0,
    override: Overrides = None,
    as_json: AsJson = False,
) -> None:
    """Say of each pair of controllers or policies whether one is better, from episodes on the same hosts.

    The hosts and episodes are those of [bold]simic trials[/bold], and the receipt is kept in the same way; wait takes
    part in it too. A difference counts as shown if its p value, adjusted for all pairs, is at most 0.05. --json has
    the differences within each family too.

    Example: [bold]simic compare heuristic blind wait -o trial.hosts_per_family=64[/bold]
    """
    from simic.app import comparison

    if host_keys is not None and split is not None:
        raise ConfigError("--host-keys names the hosts, so --split has no meaning; give one of them")
    keys = None if host_keys is None else parse_host_keys(host_keys)
    container = open_container(profile, seed, override, {} if world_set is None else {"world.set": world_set})
    found = comparison.compare(container, arms, keys, split or Split.TEST)
    title = f"{len(found.trials.host_keys)} hosts of set {found.trials.set}, paired by host"
    emit(
        found,
        as_json,
        lambda console: console.print(
            numbers_table(_table(found), title, names=3),
            _NOTE,
            numbers_table(_families(found), "By family, paired by host", names=2),
            cost_table(found.trials),
            sep="\n",
        ),
    )


def _table(found: Comparison) -> Table:
    rows: list[tuple[str, ...]] = [
        (
            pair.controller,
            pair.against,
            pair.verdict.value,
            _interval(pair.difference),
            f"{pair.adjusted_p:.4f}",
            f"{pair.probability_of_improvement:.2f}",
            f"{pair.detectable:.1f}",
        )
        for pair in found.pairs
    ]
    return Table(_HEADER, rows)


def _families(found: Comparison) -> Table:
    names = list(dict.fromkeys(name for pair in found.pairs for name in pair.by_family))
    rows: list[tuple[str, ...]] = [
        (pair.controller, pair.against, *(_interval(pair.by_family[name]) for name in names)) for pair in found.pairs
    ]
    return Table(("controller", "against", *names), rows)


def _interval(found: Estimate) -> str:
    return f"{found.mean:+.1f} [{found.lower:+.1f}, {found.upper:+.1f}]"
