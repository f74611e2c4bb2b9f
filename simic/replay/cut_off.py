"""Episodes that a snapshot lacks because they were not logged to their end, or were evicted."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.dataset as pads  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]

from simic.contracts.errors import ContractError, IntegrityError
from simic.contracts.results.receipts import SnapshotManifest
from simic.contracts.splits import Split, split_of
from simic.snapshots.parts import REJECTED_NAME

__all__ = ["CutOff", "cut_off_episodes"]

_REASONS = ("unfinished", "gap", "overlap", "ends_twice", "mixed_identity", "broken_chain", "evicted")
"""Reasons of curation that a training which crashed, or started again, leaves behind. Eviction takes the episodes of
lowest quality, which depends on how a training went."""
_NAMES = ["run_id", "reason", "set", "host_key", "controller", "policy_version"]
_BATCH_ROWS = 65_536


class CutOff(NamedTuple):
    """An episode that is not whole, under one set and behaviour that its reports name."""

    run_id: str
    reason: str
    set: str
    behaviour: str
    """As ``EpisodeHead.behaviour``."""
    host_key: int
    controller: str


def _distinct(batch: pa.RecordBatch) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = pa.Table.from_batches([batch]).group_by(_NAMES).aggregate([]).to_pylist()
    return rows


def cut_off_episodes(
    manifest: SnapshotManifest, sets: Collection[str], splits: Collection[Split] = (Split.TEST,)
) -> list[CutOff]:
    """Return the episodes on hosts of ``sets`` and ``splits`` that curation left out as not whole, in order.

    An episode counts if one of its reports names such a host; one whose reports name several sets or behaviours is
    there for each. The file is read in batches, so memory grows with the episodes and not with their reports.

    Raises:
        IntegrityError: if ``rejected.parquet`` cannot be read.
        ContractError: if it does not tell hosts and controllers, because an earlier version made the snapshot.
    """
    path, episodes = Path(manifest.path) / REJECTED_NAME, set[CutOff]()
    wanted = pads.field("reason").isin(_REASONS) & pads.field("set").isin(sorted(sets))
    try:
        if missing := [name for name in _NAMES if name not in pq.read_schema(path).names]:
            raise ContractError(f"{path} has no column {', '.join(missing)}; run `simic curate` again")
        rows = pads.dataset(path, format="parquet")
        for batch in rows.to_batches(columns=_NAMES, filter=wanted, batch_size=_BATCH_ROWS):
            for row in _distinct(batch):
                name, key = row["set"], row["host_key"]
                if split_of(name, key) in splits:
                    behaviour = row["policy_version"] or row["controller"]
                    episodes.add(CutOff(row["run_id"], row["reason"], name, behaviour, key, row["controller"]))
    except (OSError, pa.ArrowException) as error:
        raise IntegrityError(f"{path} cannot be read: {error}; run `simic curate` again") from error
    return sorted(episodes)
