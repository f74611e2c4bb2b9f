"""The proof table: what each controller is worth, as text; needs neither torch nor a terminal."""

from __future__ import annotations

from typing import NamedTuple

from simic.contracts.receipts import ControllerTrial, Estimate, FamilyTrial, TrialReport

__all__ = ["Table", "render_families", "render_table"]


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
            _interval(trial.over_wait),
            *(_difference(trial.by_family.get(family)) for family in families),
            *_kept(trial),
        )
        for trial in report.controllers
    ]
    return Table(header, rows)


def render_families(report: TrialReport) -> Table:
    """One row per family and controller: the same numbers, over the hosts of that family alone."""
    header = ("family", "controller", "hosts", "return", "over wait", "test accuracy", "parameters")
    rows: list[tuple[str, ...]] = [
        (family, trial.controller, str(own.episodes), f"{own.mean_return:.1f}", _interval(own.over_wait), *_kept(own))
        for family in sorted(set(report.families))
        for trial in report.controllers
        if (own := trial.by_family.get(family)) is not None
    ]
    return Table(header, rows)


def _kept(trial: ControllerTrial | FamilyTrial) -> tuple[str, str]:
    return f"{100 * trial.test_accuracy:.1f} %", f"{trial.committed_parameters:.0f}"


def _difference(trial: FamilyTrial | None) -> str:
    return "-" if trial is None or trial.over_wait is None else f"{trial.over_wait.mean:+.1f}"


def _interval(estimate: Estimate | None) -> str:
    return "-" if estimate is None else f"{estimate.mean:+.1f} [{estimate.lower:+.1f}, {estimate.upper:+.1f}]"
