"""The proof table: what each controller is worth, as text; needs neither torch nor a terminal."""

from __future__ import annotations

from typing import NamedTuple

from simic.contracts.receipts import Estimate, TrialReport

__all__ = ["Table", "render_table"]


class Table(NamedTuple):
    """Text for a person; every row is as long as the header."""

    header: tuple[str, ...]
    rows: list[tuple[str, ...]]


def render_table(report: TrialReport) -> Table:
    """One row per controller, in the report's order; returns in points, families as differences to waiting."""
    families = sorted(set(report.families))
    header = ("controller", "return", "over wait", *families, "test accuracy", "parameters")
    rows = [
        (
            trial.controller,
            f"{trial.mean_return:.1f}",
            "-" if trial.over_wait is None else _interval(trial.over_wait),
            *(f"{trial.by_family[family].mean:+.1f}" if family in trial.by_family else "-" for family in families),
            f"{100 * trial.test_accuracy:.1f} %",
            f"{trial.committed_parameters:.0f}",
        )
        for trial in report.controllers
    ]
    return Table(header, rows)


def _interval(estimate: Estimate) -> str:
    return f"{estimate.mean:+.1f} [{estimate.lower:+.1f}, {estimate.upper:+.1f}]"
