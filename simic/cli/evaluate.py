"""``simic evaluate``: what a log says about a policy, without growing a host."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Annotated, TypeAlias

import typer

from simic.cli.console import EXIT_CODES, LOADING_TORCH, emit, working
from simic.cli.options import (
    AsJson,
    Overrides,
    PolicyOrRules,
    ProfileName,
    Seed,
    SnapshotName,
    open_container,
    whole_number,
)
from simic.cli.tables import fitting_table
from simic.contracts.errors import ConfigError
from simic.contracts.names import short
from simic.validation.table import Table

if TYPE_CHECKING:
    from simic.contracts.results.off_policy import OffPolicyReport, Range

__all__ = ["add_to"]

MOST_POINTS = 1e9
"""Largest bound of a declared range."""
_HEADER = ("estimator", "return", "over behaviour", "effective n", "largest weight", "its share", "overlap", "clipped")
_NOTE = (
    "return: expected return of the policy in points, at the prices of the snapshot's curation, with its 95 % interval "
    "over hosts. over behaviour: "
    "minus the mean return of the logged episodes, paired by host. effective n: number of episodes that the weights "
    "are worth. overlap: share of the logged episodes that the policy could have produced.\n"
    "The log shows the return on hosts like the logged ones under the settings of the log. It shows nothing about "
    "actions that the log never took, other hosts or settings, and it is no trial: `simic trials` grows the hosts."
)

_NOTHING_DRAWN = (
    "no episode of this snapshot can be used: collect some whose actions are drawn, with `simic collect --controller "
    "explore`, then `simic ingest` and `simic curate`"
)
_UNFITTED = "no action values were fitted, because they cannot change this verdict; --model shows DR, WDR and MAGIC"


LoggedController: TypeAlias = Annotated[
    str | None,
    typer.Option(
        help="Use only episodes of this controller (such as explore), or of the policy whose version begins with "
        "these 8 or more characters. Default: all, whose mixture is the behaviour then."
    ),
]
WithModel: TypeAlias = Annotated[
    bool | None,
    typer.Option(
        "--model/--no-model",
        help="Fit action values, which takes most of the time, for the estimators DR, WDR, MAGIC. Default: only if "
        "the log is sufficient evidence without them; otherwise they cannot change the verdict.",
        show_default=False,
    ),
]
ReturnRange: TypeAlias = Annotated[
    str | None,
    typer.Option(
        metavar="LOW:HIGH",
        help="Declare that every possible return lies in this range of points, and also show lower bounds that hold "
        "for any distribution of returns.",
    ),
]
WithHeldOut: TypeAlias = Annotated[
    bool,
    typer.Option(
        "--held-out",
        help="With gate.evidence = reports: also use episodes on test hosts, by which the gate judges. A policy "
        "chosen by this estimate is judged by hosts that chose it.",
    ),
]


def add_to(app: typer.Typer) -> None:
    """Register `simic evaluate`, with the exit codes of most verbs."""
    app.command("evaluate", epilog=EXIT_CODES)(evaluate)


def evaluate(
    policy: PolicyOrRules,
    snapshot: SnapshotName = None,
    log: LoggedController = None,
    exploring: Annotated[
        bool, typer.Option("--exploring", help="Evaluate the policy as it explores, not as it acts in trials.")
    ] = False,
    episodes: Annotated[
        int, whole_number(least=1, most=1_000_000, about="Largest number of episodes to use.")
    ] = 10_000,
    model: WithModel = None,
    return_range: ReturnRange = None,
    held_out: WithHeldOut = False,
    profile: ProfileName = "default",
    seed: Seed = 0,
    override: Overrides = None,
    as_json: AsJson = False,
) -> None:
    """Estimate a policy's return from the episodes of a snapshot that another controller logged, without a trial.

    For reports of networks that cannot be grown again, and as a second opinion beside a trial. Each logged episode
    counts as much more or less as the policy would have acted in that way more or less often. Episodes on hosts that
    the policy learned from are left out; with gate.evidence = reports those on test hosts are, too, because the gate
    judges by them.

    The verdict compares with the behaviour that logged the episodes: better, worse, no difference shown, or
    insufficient evidence. It is insufficient unless there are 50 hosts or more, the weights are worth 50 hosts or more
    at every step, no host has over a tenth of all weight, at most 1 % of the episodes were cut off before their end,
    the mean weight is 1 within 3 standard errors, and 3 standard errors below it is still 0.85 or more: otherwise the
    log lacks actions that the policy takes, has too few of them, or lacks what went badly. Mean weight and cut off
    episodes count for each set and controller, too; those with fewer than 50 hosts are left out. The log says most
    about policies that act like it.

    Example: [bold]simic evaluate champion --log explore --snapshot 150d7590[/bold]
    """
    container = open_container(profile, seed, override, controllers=[policy])
    with working(LOADING_TORCH):
        from simic.app.evidence import evaluation

    choice = evaluation.EvaluationChoice(
        policy=policy,
        snapshot=snapshot,
        log=log,
        is_exploring=exploring,
        most_episodes=episodes,
        with_model=model,
        return_range=None if return_range is None else _parse_range(return_range),
        with_held_out=held_out,
    )
    report = evaluation.evaluate(container, choice)
    is_short = model is None and bool(report.rows) and not any(row.estimator == "WDR" for row in report.rows)
    emit(report, as_json, lambda console: console.print(*_page(report, [_UNFITTED] if is_short else []), sep="\n"))


def _page(report: OffPolicyReport, remarks: list[str]) -> list[object]:
    used = ", ".join(f"{count} of {short(name)}" for name, count in report.behaviours.items()) or "none"
    horizons = f", horizons {', '.join(map(str, report.horizons))}" if len(report.horizons) > 1 else ""
    left_out = ", ".join(f"{count} {why}" for why, count in report.left_out.items()) or "none"
    title = f"{report.controller} on snapshot {short(report.snapshot_digest)}: {report.verdict.value}"
    failed = [check for check in report.checks if not check.passes]
    lines = [
        f"episodes: {report.episodes} on {report.hosts} hosts ({used}{horizons}); left out: {left_out}",
        f"hosts that it learned from: {report.training_hosts}",
        f"return of the behaviour: {_cell(report.behaviour_return)}",
        *([] if report.episodes else [_NOTHING_DRAWN]),
        f"verdict: {report.verdict.value}, by {' and '.join(report.judged_by) or 'no estimator'}",
        *(f"insufficient: {_found(check.found)} {check.name}; expected {check.expected}" for check in failed),
        *(
            f"at least {bound.value:.1f} points with {100 * bound.confidence:g}% confidence ({bound.method})"
            for bound in report.lower_bounds
        ),
        *remarks,
    ]
    return [fitting_table(_table(report), title, names=1), *lines, _NOTE]


def _table(report: OffPolicyReport) -> Table:
    rows: list[tuple[str, ...]] = [
        (
            row.estimator,
            _cell(row.value),
            "-" if row.difference is None else _cell(row.difference, "+.1f"),
            f"{row.effective_sample_size:.1f} of {row.n}",
            f"{row.largest_weight:.3g}",
            f"{row.largest_share:.1%}",
            f"{row.overlap:.1%}",
            str(row.clip_count),
        )
        for row in report.rows
    ]
    return Table(_HEADER, rows)


def _cell(estimate: Range | None, form: str = ".1f") -> str:
    return "-" if estimate is None else f"{estimate.value:{form}} [{estimate.lower:{form}}, {estimate.upper:{form}}]"


def _found(value: float | None) -> str:
    return "no" if value is None else f"{value:.3g}"


def _parse_range(text: str) -> tuple[float, float]:
    low, separator, high = text.partition(":")
    try:
        bounds = float(low), float(high)
    except ValueError:
        bounds = math.nan, math.nan
    if not (separator and -MOST_POINTS <= bounds[0] < bounds[1] <= MOST_POINTS):  # NaN is refused, too
        raise ConfigError(
            f"--return-range expects LOW:HIGH in points, LOW below HIGH, up to {MOST_POINTS:g}, found {text!r}"
        )
    return bounds
