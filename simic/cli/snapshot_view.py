"""Snapshots for people: tables of what there is, what differs, what is damaged, what goes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from simic.cli.text import cell, megabytes, short, visible
from simic.contracts.snapshots import (
    Change,
    EpisodeCounts,
    RowCounts,
    SnapshotCheck,
    SnapshotDifference,
    SnapshotList,
    SnapshotPruning,
    SnapshotSummary,
)

__all__ = ["check_table", "difference_view", "list_table", "pruning_table"]


def list_table(found: SnapshotList) -> RenderableType:
    """One line per snapshot; the unreadable ones below."""
    if not found.snapshots and not found.unreadable:
        return Text("no snapshots; `simic curate` makes one")
    table = _table(
        "snapshot", "made", "rows", "train", "valid.", "test", "reward", "gamma", "MB", "holds MB", "pinned", "used by"
    )
    for summary in found.snapshots:
        episodes = [str(summary.episodes.get(split, 0)) for split in ("train", "validation", "test")]
        table.add_row(
            short(summary.digest),
            f"{summary.made_at:%Y-%m-%d %H:%M}",
            f"{summary.rows:,}",
            *episodes,
            summary.reward_family,
            f"{summary.gamma:g}",
            megabytes(summary.size_bytes),
            megabytes(summary.held_bytes),
            cell((summary.pinned_because or "yes") if summary.is_pinned else None),
            _users(summary),
        )
    broken = [Text(visible(f"{folder}: {why}"), style="red") for folder, why in found.unreadable.items()]
    return Group(table, *broken)


def _users(summary: SnapshotSummary) -> str:
    """Those that read it themselves by name, those that came after them by number."""
    direct = [f"{short(use.policy)} {use.standing.value}" for use in summary.used_by if use.is_direct]
    later = Counter(use.standing.value for use in summary.used_by if not use.is_direct)
    return ", ".join([*direct, *(f"{count} {standing} after" for standing, count in sorted(later.items()))])


def difference_view(found: SnapshotDifference) -> RenderableType:
    """From the whole to the parts."""
    parts: list[RenderableType] = [Text(f"A {short(found.a)}\nB {short(found.b)}")]
    if found.a == found.b:
        return Group(*parts, Text("the same snapshot"))
    totals = _table("", "only A", "only B", "changed", "same")
    totals.add_row("episodes", *_counts(found.episodes))
    totals.add_row("rows", *_counts(found.rows))
    parts.append(totals)
    parts += _changes("Manifest", found.manifest)
    parts += _changes("Settings that decide over rows", found.settings)
    parts.append(Text(f"Rules: {'the same SQL' if found.has_same_rules else 'other SQL'}"))
    for side, columns in (("A", found.columns_only_a), ("B", found.columns_only_b)):
        if columns:
            parts.append(cell(f"Columns only {side} has: {', '.join(columns)}"))
    if found.rejected:
        rejected = _table("rows left out", "A", "B")
        for reason, (a, b) in found.rejected.items():
            rejected.add_row(cell(reason), f"{a:,}", f"{b:,}")
        parts.append(rejected)
    if found.groups:
        parts.append(_groups(found))
    if found.changed_columns:
        listed = ", ".join(f"{name} in {count:,}" for name, count in found.changed_columns.items())
        parts.append(cell(f"Rows in both that differ: {listed}"))
    for what, runs in (
        ("only in A", found.episodes_only_a),
        ("only in B", found.episodes_only_b),
        ("changed", found.episodes_changed),
    ):
        if runs:
            parts.append(cell(f"Episodes {what}, for example: {', '.join(runs)}"))
    return Group(*parts)


def _groups(found: SnapshotDifference) -> Table:
    table = _table("split", "controller", "family", "episodes: only A", "only B", "changed", "same", "rows: only A",
                   "only B", "changed", "same")  # fmt: skip
    for group in found.groups:
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
        table.add_row(cell(change.name), _brief(change.a), _brief(change.b))
    return [table]


def _brief(value: Any) -> Text:
    if value is None:
        return Text("-")
    if isinstance(value, dict):
        return cell(", ".join(f"{name} {item}" for name, item in value.items()))
    return cell(short(str(value)))


def check_table(checks: Sequence[SnapshotCheck]) -> RenderableType:
    """Whole or damaged, and in what."""
    if not checks:
        return Text("no snapshots")
    table = _table("snapshot", "files", "MB checked", "found")
    for check in checks:
        found = Text(visible("\n".join(check.damage)), style="red") if check.damage else Text("whole", style="green")
        table.add_row(check.folder, str(check.files), megabytes(check.size_bytes), found)
    return table


def pruning_table(found: SnapshotPruning) -> RenderableType:
    """What goes, and what keeps the others."""
    table = _table("snapshot", "MB", "goes" if found.is_dry_run else "went", "kept because")
    for item in found.snapshots:
        goes = "" if item.kept_because else "yes"
        table.add_row(short(item.digest), megabytes(item.size_bytes), goes, cell("; ".join(item.kept_because)))
    verb = "would free" if found.is_dry_run else "freed"
    hint = "; nothing was removed, --yes does it" if found.is_dry_run and found.freed_bytes else ""
    return Group(table, Text(f"{verb} {megabytes(found.freed_bytes)} MB{hint}"))


def _table(*columns: str) -> Table:
    table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for name in columns:
        table.add_column(name, overflow="fold")
    return table
