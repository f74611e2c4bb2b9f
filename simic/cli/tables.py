"""Receipts and reports as tables on a terminal."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.measure import Measurement
from rich.table import Column, Table
from rich.text import Text

from simic.cli.console import cell, megabytes, visible
from simic.contracts.names import short
from simic.contracts.results.gate import GateDecision, ValidationReport, Verdict
from simic.contracts.results.receipts import PublicationReceipt, Receipt
from simic.contracts.results.snapshots import (
    Change,
    EpisodeCounts,
    PolicyStatus,
    RowCounts,
    SnapshotCheck,
    SnapshotDifference,
    SnapshotList,
    SnapshotPruning,
    SnapshotSummary,
)
from simic.contracts.results.trials import TrialReport
from simic.validation import table as proof
from simic.validation.baselines.plan_book import lacks_book, missing_book_message, other_game_message

__all__ = [
    "check_table",
    "cost_table",
    "decision_table",
    "difference_view",
    "family_table",
    "fitting_table",
    "list_table",
    "numbers_table",
    "proof_table",
    "pruning_table",
    "receipt_lines",
    "rent_table",
    "rows_table",
    "search_table",
    "static_table",
    "trial_table",
]

COMMON = frozenset({"schema_version", "code_version", "config_digest", "seed", "started_at", "finished_at", "stage"})
MOST_ITEMS = 8
_UNBOUNDED = 1000
"""Width in characters that no table exceeds."""
_NARROW = {
    "test accuracy": "test\nacc.", "parameters": "para-\nmeters", "validation": "vali-\ndation",
    "of host": "of\nhost", "extra compute": "extra\ncom-\npute", "controller": "con-\ntrol-\nler",
}  # fmt: skip
"""Headers of numeric columns, broken into lines."""
_STATUS = {
    PolicyStatus.CHAMPION: "champion",
    PolicyStatus.FORMER: "former champion",
    PolicyStatus.ACCEPTED: "accepted",
    PolicyStatus.REJECTED: "rejected",
    PolicyStatus.UNJUDGED: "not judged by the gate",
}
VERDICT_STYLES = {Verdict.PASS: "green", Verdict.FAIL: "bold red", Verdict.MISSING: "bold yellow"}


def trial_table(report: TrialReport, title: str | None = None, images: str | None = None) -> RenderableType:
    """Return a table of every controller on the same hosts; families move to a table of their own if space is short.

    ``images`` is the user's ``world.images``, for the command that makes a missing plan book.
    """
    title = title or f"{len(report.host_keys)} hosts of set {report.set}, paired by host"
    text = proof.render_table(report)
    captions = [
        missing_book_message(report.set, report.without_book, images),
        other_game_message(report.set, report.book_differences),
    ]
    short = proof.without_families(text, report)
    layouts = [
        numbers_table(text, title, names=1),
        numbers_table(short, title, names=1),
        numbers_table(short, title, names=1, is_narrow=True),
    ]
    notes = [f"{caption}." for caption in captions if caption]
    if any(row.scored_by == "test" for row in report.controllers):
        notes.append(proof.SCORED_NOTE)
    return Group(_Fitting(layouts), *map(Text, notes))


def family_table(report: TrialReport) -> RenderableType:
    """Return the results within each family, and what their intervals are."""
    text, title = proof.render_families(report), "By family, paired by host"
    notes = [proof.INTERVALS_NOTE]
    single = sorted({name for row in report.controllers for name, own in row.by_family.items() if own.episodes == 1})
    if single:
        notes.append(f"-: no difference to wait and no interval for families of one host: {', '.join(single)}.")
    return Group(fitting_table(text, title, names=2), *map(Text, notes))


def cost_table(report: TrialReport) -> RenderableType:
    """Return accuracies and costs of every controller, and what the columns mean."""
    text, title = proof.render_costs(report), "Cost and accuracy, paired by host"
    table = fitting_table(text, title, names=1)
    return Group(table, Text(proof.COST_NOTE))


def search_table(report: TrialReport) -> list[RenderableType]:
    """Return all controllers scored by test accuracy beside the arms that search, if one takes part."""
    if all(row.scored_by == "validation" for row in report.controllers):
        return []
    text, title = proof.render_searched(report), "Scored by test accuracy, paired by host"
    return [numbers_table(text, title, names=1), Text(proof.SEARCHED_NOTE)]


def rent_table(report: TrialReport) -> RenderableType:
    """Return the differences to wait at other rents."""
    text = proof.render_rents(report)
    title = "Over wait at other rents per parameter: the same episodes, nothing trained for them, paired by host"
    return fitting_table(text, title, names=1)


def static_table(report: TrialReport) -> RenderableType:
    """Return the comparison of controllers with their final networks trained from the start."""
    text, title = proof.render_static(report), "Final networks trained from the start"
    table = fitting_table(text, title, names=2)
    return Group(table, Text(proof.STATIC_NOTE))


def numbers_table(text: proof.Table, title: str, names: int, *, is_narrow: bool = False) -> Table:
    """Return a table of ``names`` text columns, which may wrap, and numeric columns, which are never cut."""
    table = Table(
        title=title,
        title_justify="left",
        box=SIMPLE_HEAD,
        padding=(0, 0, 0, 0) if is_narrow else (0, 1, 0, 0),
        pad_edge=False,
        show_edge=not is_narrow,
    )
    for header in text.header[:names]:
        table.add_column(header, overflow="fold")
    for index, name in enumerate(text.header[names:], names):
        header = _NARROW.get(name, name) if is_narrow else name
        widest = max(map(len, [*header.split(), *(row[index] for row in text.rows)]))
        table.add_column(header, justify="right", min_width=widest)
    for row in text.rows:
        table.add_row(*map(cell, row))
    return table


def fitting_table(text: proof.Table, title: str, names: int) -> RenderableType:
    """Return ``numbers_table``, with short headers, no padding and no edges if the screen needs it."""
    return _Fitting([numbers_table(text, title, names, is_narrow=is_narrow) for is_narrow in (False, True)])


class _Fitting:
    """Return the first of several tables that fits the screen, or else the last one at its least width."""

    def __init__(self, tables: Sequence[Table]) -> None:
        self._tables = tables

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        widths = [Measurement.get(console, options.update(width=_UNBOUNDED), table) for table in self._tables]
        for table, width in zip(self._tables, widths, strict=True):
            if width.maximum <= options.max_width:
                yield from console.render(table, options)
                return
        needed = max(widths[-1].minimum, options.max_width)
        yield from console.render(self._tables[-1], options.update(width=needed))


def proof_table(report: ValidationReport) -> RenderableType:
    """Return a table of the candidate and its baselines on held-out hosts; from a log, of its estimated gains."""
    if report.evidence == "reports" and report.log is not None:
        log = report.log
        title = (
            f"Validation: {log.episodes} logged episodes of {report.hosts} held-out hosts, {log.estimator}, in points"
        )
        return numbers_table(proof.render_log(log, report.differences), title, names=1)
    return trial_table(
        report.trials, f"Validation: {len(report.trials.host_keys)} held-out hosts, return in points, paired by host"
    )


def decision_table(decision: GateDecision) -> Table:
    """Return a table of every criterion with value, bound and verdict; those that do not pass come first."""
    from simic.validation.gate_bounds import page_text  # it loads numpy, which completion need not wait for

    outcome = "accepted" if decision.accepted else "rejected"
    outcome += ", judged without a plan book" if lacks_book(decision) else ""
    table = Table(
        *(Column(name, no_wrap=True) for name in ("criterion", "value", "bound", "verdict")),
        "evidence",
        title=f"Gate: {outcome}",
        title_justify="left",
        caption=page_text(decision),
        caption_justify="left",
        box=SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
    )
    for line in sorted(decision.criteria, key=lambda criterion: criterion.verdict is Verdict.PASS):
        table.add_row(
            line.name,
            "missing" if line.value is None else f"{line.value:.4g}",
            f"{line.comparison} {line.bound:.4g}",
            Text(line.verdict.value, style=VERDICT_STYLES[line.verdict]),
            cell(line.evidence),
        )
    return table


def receipt_lines(receipt: Receipt) -> Table:
    """Return names and values of a receipt, without the fields that all receipts share."""
    table = Table(show_header=False, box=None, pad_edge=False, highlight=False)
    table.add_column(style="bold")
    table.add_column(overflow="fold")
    words = {"delivered": _delivery(receipt)} if isinstance(receipt, PublicationReceipt) else {}
    for name, value in (receipt.model_dump(mode="json") | words).items():
        if name not in COMMON:
            first, *others = _lines(value)
            table.add_row(name.replace("_", " "), cell(first))
            for further in others:
                table.add_row("", cell(further))
    seconds = (receipt.finished_at - receipt.started_at).total_seconds()
    table.add_row("took", f"{seconds:.1f} s")
    return table


def _delivery(receipt: PublicationReceipt) -> str:
    if receipt.delivered:
        return "now"
    return f"this version was published on {receipt.update.issued_at:%Y-%m-%d %H:%M} UTC; nothing was sent again"


def rows_table(rows: Sequence[Mapping[str, Any]]) -> RenderableType:
    """Return query results as a table, or with one line per value if the table is wider than the screen."""
    table = Table(*(Column(cell(name)) for name in (rows[0] if rows else ())), box=SIMPLE_HEAD)
    lines = Table(Column(style="bold", no_wrap=True), Column(overflow="fold"), show_header=False, box=None)
    for number, row in enumerate(rows, 1):
        table.add_row(*map(_value, row.values()))
        lines.add_row(Text(f"row {number}", style="dim"), "")
        for name, value in row.items():
            lines.add_row(cell(name), _value(value))
    return _Fitting([table, lines])


def _value(value: object) -> Text:
    """Return a cell of a query's result; of a fraction with six significant digits."""
    if not isinstance(value, float) or not 1e-4 < abs(value) < 1e6:
        return cell(value)
    return cell(float(f"{value:.6g}"))


def _lines(value: Any) -> list[str]:
    """Return one line for each record of a list of records, such as files, and one for any other value."""
    if not isinstance(value, list) or not value or not isinstance(value[0], dict):
        return [_brief(value)]
    more = [f"and {len(value) - MOST_ITEMS} more; --json shows them"] if len(value) > MOST_ITEMS else []
    return [*map(_brief, value[:MOST_ITEMS]), *more]


def _brief(value: Any) -> str:
    if isinstance(value, dict):
        return _joined(f"{name} {_brief(item)}" for name, item in value.items())
    if isinstance(value, list):
        return _joined(_brief(item) for item in value)
    return f"{value:.4g}" if isinstance(value, float) else "-" if value is None else short(str(value))


def _joined(items: Iterable[str]) -> str:
    texts = list(items)
    more = f", and {len(texts) - MOST_ITEMS} more" if len(texts) > MOST_ITEMS else ""
    return (", ".join(texts[:MOST_ITEMS]) + more) or "none"


def list_table(listing: SnapshotList) -> RenderableType:
    """Return a table with one line per snapshot, and the unreadable ones below."""
    if not listing.snapshots and not listing.unreadable:
        return Text("no snapshots; `simic curate` makes one")
    table = _table(
        "snapshot",
        "made",
        "rows",
        "episodes\ntrain/valid./test",
        "reward",
        "gamma",
        "MB",
        "holds MB",
        "pinned",
        "used by",
    )
    for summary in listing.snapshots:
        episodes = "/".join(str(summary.episodes.get(split, 0)) for split in ("train", "validation", "test"))
        table.add_row(
            short(summary.digest),
            f"{summary.made_at:%Y-%m-%d %H:%M}",
            f"{summary.rows:,}",
            episodes,
            summary.reward_family,
            f"{summary.gamma:g}",
            megabytes(summary.size_bytes),
            megabytes(summary.held_bytes),
            cell((summary.pinned_because or "yes") if summary.is_pinned else None),
            _users(summary),
        )
    broken = [Text(visible(f"{folder}: {why}"), style="red") for folder, why in listing.unreadable.items()]
    return Group(table, *broken)


def _users(summary: SnapshotSummary) -> str:
    """Return the policies trained on the snapshot by name, and the number of policies that started from these."""
    direct = [f"{short(use.policy)} ({_STATUS[use.standing]})" for use in summary.used_by if use.is_direct]
    later = Counter(_STATUS[use.standing] for use in summary.used_by if not use.is_direct)
    counts = ", ".join(f"{count} {status}" for status, count in sorted(later.items()))
    return "; ".join([", ".join(direct), *([f"policies trained from these: {counts}"] if counts else [])])


def difference_view(difference: SnapshotDifference) -> RenderableType:
    """Return totals, changed settings, rows left out and changed columns, in this order."""
    parts: list[RenderableType] = [Text(f"A {short(difference.a)}\nB {short(difference.b)}")]
    if difference.a == difference.b:
        return Group(*parts, Text("the same snapshot"))
    totals = _table("", "only A", "only B", "changed", "same")
    totals.add_row("episodes", *_counts(difference.episodes))
    totals.add_row("rows", *_counts(difference.rows))
    parts.append(totals)
    parts += _changes("Manifest", difference.manifest)
    parts += _changes("Settings that affect rows", difference.settings)
    parts.append(Text(f"Rules: {'the same SQL' if difference.has_same_rules else 'other SQL'}"))
    for side, columns in (("A", difference.columns_only_a), ("B", difference.columns_only_b)):
        if columns:
            parts.append(cell(f"Columns only {side} has: {', '.join(columns)}"))
    if difference.rejected:
        rejected = _table("rows left out", "A", "B")
        for reason, (a, b) in difference.rejected.items():
            rejected.add_row(cell(reason), f"{a:,}", f"{b:,}")
        parts.append(rejected)
    if difference.groups:
        parts.append(_groups(difference))
    if difference.changed_columns:
        listed = ", ".join(f"{name} in {count:,}" for name, count in difference.changed_columns.items())
        parts.append(cell(f"Rows in both that differ: {listed}"))
    for what, runs in (
        ("only in A", difference.episodes_only_a),
        ("only in B", difference.episodes_only_b),
        ("changed", difference.episodes_changed),
    ):
        if runs:
            parts.append(cell(f"Episodes {what}, for example: {', '.join(runs)}"))
    return Group(*parts)


def _groups(difference: SnapshotDifference) -> Table:
    table = _table("split", "controller", "family", "episodes: only A", "only B", "changed", "same", "rows: only A",
                   "only B", "changed", "same")  # fmt: skip
    for group in difference.groups:
        names = map(cell, (group.split, group.controller, group.family))
        table.add_row(*names, *_counts(group.episodes), *_counts(group.rows))
    return table


def _counts(counts: RowCounts | EpisodeCounts) -> Iterable[str]:
    return (f"{value:,}" for value in (counts.only_a, counts.only_b, counts.changed, counts.same))


def _changes(title: str, changes: Sequence[Change]) -> list[RenderableType]:
    if not changes:
        return []
    table = _table(title, "A", "B")
    for change in changes:
        table.add_row(cell(change.name), _short_cell(change.a), _short_cell(change.b))
    return [table]


def _short_cell(value: Any) -> Text:
    if value is None:
        return Text("-")
    if isinstance(value, dict):
        return cell(", ".join(f"{name} {item}" for name, item in value.items()))
    return cell(short(str(value)))


def check_table(checks: Sequence[SnapshotCheck]) -> RenderableType:
    """Return one line per snapshot: intact, or every damage that was found."""
    if not checks:
        return Text("no snapshots")
    table = _table("snapshot", "files", "MB checked", "found")
    for check in checks:
        outcome = Text(visible("\n".join(check.damage)), style="red") if check.damage else Text("intact", style="green")
        table.add_row(check.folder, str(check.files), megabytes(check.size_bytes), outcome)
    return table


def pruning_table(pruning: SnapshotPruning) -> RenderableType:
    """Return one line per snapshot: removed, or the reasons to keep it."""
    table = _table("snapshot", "MB", "to remove" if pruning.is_dry_run else "removed", "kept because")
    for item in pruning.snapshots:
        goes = "" if item.kept_because else "yes"
        table.add_row(short(item.digest), megabytes(item.size_bytes), goes, cell("; ".join(item.kept_because)))
    verb = "would free" if pruning.is_dry_run else "freed"
    hint = "; nothing was removed yet: add --yes" if pruning.is_dry_run and pruning.freed_bytes else ""
    return Group(table, Text(f"{verb} {megabytes(pruning.freed_bytes)} MB{hint}"))


def _table(*columns: str) -> Table:
    table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for name in columns:
        table.add_column(name, overflow="fold")
    return table
