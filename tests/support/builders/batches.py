"""Batches compared column by column, and stores of small episodes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch

from simic.controllers.graph import GraphBatch
from simic.replay.batch import SequenceBatch
from simic.replay.dataset import GraphDataset
from support.builders.reports import BLUEPRINTS, episode
from support.builders.snapshots import write_snapshot

__all__ = ["assert_same_batch", "assert_same_graphs", "small_store"]

_SCRIPT = {0: "GERMINATE", 3: "PRUNE", 7: "GERMINATE", 9: "ADVANCE", 11: "FOSSILIZE"}


def small_store(directory: Path, count: int = 12, *, first_key: int = 0) -> GraphDataset:
    """Episodes of 2 to 20 steps, some of a learned controller, some pruning, some truncated."""
    reports = [
        report
        for key in range(first_key, first_key + count)
        for report in episode(
            key,
            horizon=20 if key % 4 == 1 else 4 + key % 5,
            script=_SCRIPT if key % 4 == 1 else None,
            truncate_at=1 + key % 3 if key % 3 == 2 else None,
            controller="learned" if key % 2 else "explore",
            policy_version="ab" * 32 if key % 2 else None,
        )
    ]
    write_snapshot(directory, reports, split="train", change=narrowed)
    return GraphDataset.load(directory, blueprints=BLUEPRINTS)


def narrowed(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Every third state has two slots instead of three, so that no two offsets are in step."""
    for index, row in enumerate(rows):
        if index % 3 == 0 and row["action"]["slot"] is None:
            row["state"]["slots"] = row["state"]["slots"][:2]
            row["state"]["graph"]["monitors"] = [[0, 0], [1, 1]]
            row["available"]["slot"] = [[index % 2 == 0, True] for _ in row["available"]["op"]]
            row["available"]["blueprint"] = BLUEPRINTS[: index % 4]
    return rows


def assert_same_graphs(found: GraphBatch, expected: GraphBatch) -> None:
    for name, value in expected._asdict().items():
        if name == "edges":
            assert found.edges.keys() == value.keys()
            for edge in value:
                assert found.edges[edge].dtype == torch.int64
                assert torch.equal(found.edges[edge], value[edge]), edge
        else:
            assert torch.equal(getattr(found, name), value), name


def assert_same_batch(found: SequenceBatch, expected: SequenceBatch) -> None:
    """Everything but the ids."""
    assert found.most_slots == expected.most_slots
    for name in vars(expected).keys() - {"sequence_ids", "masks", "steps", "with_finals", "most_slots"}:
        ours, theirs = getattr(found, name), getattr(expected, name)
        assert (ours is None) == (theirs is None), name
        if ours is None:
            continue
        assert ours.dtype == theirs.dtype and torch.equal(ours, theirs), name
    assert all(torch.equal(ours, theirs) for ours, theirs in zip(found.masks, expected.masks, strict=True))
    assert_same_graphs(found.steps, expected.steps)
    assert_same_graphs(found.with_finals, expected.with_finals)
    assert len(found.sequence_ids) == len(np.asarray(expected.sequence_ids))
