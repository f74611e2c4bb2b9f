"""Receipts for people."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.table import Column, Table
from rich.text import Text

from simic.cli.text import cell, short
from simic.contracts.receipts import GateDecision, Receipt, TrialReport, ValidationReport, Verdict
from simic.validation import table as proof

__all__ = ["decision_table", "family_table", "proof_table", "receipt_lines", "rows_table", "trial_table"]

COMMON = frozenset({"schema_version", "code_version", "config_digest", "seed", "started_at", "finished_at", "stage"})
MOST_ITEMS = 8
VERDICT_STYLES = {Verdict.PASS: "green", Verdict.FAIL: "bold red", Verdict.MISSING: "bold yellow"}


def trial_table(report: TrialReport, title: str | None = None) -> Table:
    """Every controller on the same hosts, paired by host."""
    title = title or f"{len(report.host_keys)} hosts of set {report.set}, paired by host"
    return _numbers_table(proof.render_table(report), title, names=1)


def family_table(report: TrialReport) -> Table:
    """The same within each family."""
    return _numbers_table(proof.render_families(report), "By family, paired by host", names=2)


def _numbers_table(text: proof.Table, title: str, names: int) -> Table:
    """``names`` columns of names, then numbers."""
    table = Table(*text.header, title=title, title_justify="left", box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for column in table.columns[:names]:
        column.no_wrap = True
    for column in table.columns[names:]:
        column.justify = "right"
    for row in text.rows:
        table.add_row(*row)
    return table


def proof_table(report: ValidationReport) -> Table:
    """The candidate and its rivals on held-out hosts."""
    return trial_table(
        report.trials, f"Proof: {len(report.trials.host_keys)} held-out hosts, return in points, paired by host"
    )


def decision_table(decision: GateDecision) -> Table:
    """Every criterion with value, bound and verdict."""
    outcome = "accepted" if decision.accepted else "rejected"
    table = Table(
        "criterion",
        "value",
        "bound",
        "verdict",
        "evidence",
        title=f"Gate: {outcome}",
        title_justify="left",
        box=SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
    )
    for line in decision.criteria:
        table.add_row(
            line.name,
            "missing" if line.value is None else f"{line.value:.4g}",
            f"{line.comparison} {line.bound:.4g}",
            Text(line.verdict.value, style=VERDICT_STYLES[line.verdict]),
            cell(line.evidence),
        )
    return table


def receipt_lines(receipt: Receipt) -> Table:
    """Names and values of a receipt, without what all receipts have in common."""
    table = Table(show_header=False, box=None, pad_edge=False, highlight=False)
    table.add_column(style="bold")
    table.add_column(overflow="fold")
    for name, value in receipt.model_dump(mode="json").items():
        if name not in COMMON:
            table.add_row(name.replace("_", " "), cell(_brief(value)))
    seconds = (receipt.finished_at - receipt.started_at).total_seconds()
    table.add_row("took", f"{seconds:.1f} s")
    return table


def rows_table(rows: Sequence[Mapping[str, Any]]) -> Table:
    """The answer to a query."""
    table = Table(*(Column(cell(name)) for name in (rows[0] if rows else ())), box=SIMPLE_HEAD)
    for row in rows:
        table.add_row(*map(cell, row.values()))
    return table


def _brief(value: Any) -> str:
    if isinstance(value, dict):
        return _joined(f"{name} {_brief(item)}" for name, item in value.items())
    if isinstance(value, list):
        return _joined(_brief(item) for item in value)
    return f"{value:.4g}" if isinstance(value, float) else "-" if value is None else short(str(value))


def _joined(items: Iterable[str]) -> str:
    found = list(items)
    more = f", and {len(found) - MOST_ITEMS} more" if len(found) > MOST_ITEMS else ""
    return (", ".join(found[:MOST_ITEMS]) + more) or "none"
