"""A snapshot with everything an export must carry: hosts of several sizes, cuts, panics, weights and none."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from simic.contracts.actions import OPS
from simic.contracts.results.receipts import SnapshotManifest
from simic.replay.dataset import GraphDataset
from support.builders.reports import BLUEPRINTS, episode
from support.builders.snapshots import write_snapshot

__all__ = ["files_below", "graph_store", "narrowed", "uneven_snapshot"]

PRUNING = {0: "GERMINATE", 3: "PRUNE", 7: "GERMINATE", 9: "ADVANCE", 11: "FOSSILIZE"}


def uneven_snapshot(directory: Path) -> SnapshotManifest:
    """Nine episodes of its train split, one of them a branch; every third state has two slots, the others three."""
    parts = [
        *(episode(key) for key in (3, 5, 11)),
        episode(12, branch_of=episode(12)[0].run_id, branch_step=9),
        episode(6, script=PRUNING),
        episode(7, truncate_at=6),
        episode(8, governor_at=4),
        *(episode(key, controller="learned", policy_version="ab" * 32, seed=2) for key in (9, 10)),
    ]
    return write_snapshot(directory, [report for part in parts for report in part], split="train", change=narrowed)


def graph_store(manifest: SnapshotManifest) -> GraphDataset:
    """What replay makes of it."""
    return GraphDataset.load(Path(manifest.path), blueprints=BLUEPRINTS)


def files_below(folder: Path) -> dict[str, bytes]:
    """Every file by its path."""
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def narrowed(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Two slots instead of three in every third state whose action names no slot."""
    for index, row in enumerate(rows):
        if index % 3 == 0 and row["action"]["slot"] is None:
            row["state"]["slots"] = row["state"]["slots"][:2]
            row["state"]["graph"]["monitors"] = [[0, 0], [1, 1]]
            row["available"]["slot"] = [[index % 2 == 0, True] for _ in OPS]
            row["available"]["blueprint"] = ["norm", "gate"][: index % 4]
    return rows
