"""Episodes on held-out hosts that a snapshot lacks because they were not logged to their end."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from pathlib import Path

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]

from simic.contracts.errors import ContractError, IntegrityError
from simic.contracts.receipts import SnapshotManifest
from simic.contracts.splits import Split, split_of
from simic.snapshots.parts import REJECTED_NAME

__all__ = ["cut_off_episodes"]

_REASONS = ("unfinished", "gap", "overlap", "ends_twice", "mixed_identity", "broken_chain")
"""Reasons of curation that a training which crashed, or started again, leaves behind."""


def cut_off_episodes(manifest: SnapshotManifest, sets: Collection[str]) -> dict[str, int]:
    """Return the number of episodes per reason on test hosts of ``sets`` that curation left out as not whole.

    An episode counts if one of its reports names such a host.

    Raises:
        IntegrityError: if ``rejected.parquet`` cannot be read.
        ContractError: if it does not tell the hosts, because an earlier version made the snapshot.
    """
    path = Path(manifest.path) / REJECTED_NAME
    names = ["run_id", "reason", "set", "host_key"]
    try:
        if missing := [name for name in names if name not in pq.read_schema(path).names]:
            raise ContractError(f"{path} has no column {', '.join(missing)}; run `simic curate` again")
        wanted = [("reason", "in", _REASONS), ("set", "in", sorted(sets))]
        table = pq.read_table(path, columns=names, filters=wanted)
    except (OSError, pa.ArrowException) as error:
        raise IntegrityError(f"{path} cannot be read: {error}; run `simic curate` again") from error
    rows = table.group_by(names).aggregate([]).to_pylist()
    held_out = {(row["run_id"], row["reason"]) for row in rows if split_of(row["set"], row["host_key"]) is Split.TEST}
    return dict(sorted(Counter(reason for _, reason in held_out).items()))
