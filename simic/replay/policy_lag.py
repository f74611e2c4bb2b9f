"""By how many versions the policies that acted in the episodes of a snapshot are behind the newest one."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]
from numpy.typing import NDArray

from simic.contracts.errors import IntegrityError
from simic.contracts.results.receipts import SnapshotManifest

__all__ = ["policy_lags"]

_EPISODES_NAME = "episodes.parquet"


def policy_lags(manifest: SnapshotManifest, run_ids: Sequence[str]) -> NDArray[np.float64]:
    """Return [E]: versions behind the newest known policy, NaN for an episode of a controller without a version.

    All are NaN for a snapshot without a table of episodes.

    Raises:
        IntegrityError: if the table cannot be read.
    """
    if _EPISODES_NAME not in {file.name for file in manifest.files}:
        return np.full(len(run_ids), np.nan)
    path = Path(manifest.path) / _EPISODES_NAME
    try:
        table = pq.read_table(path, columns=["run_id", "versions_behind"])
    except (OSError, pa.ArrowException) as error:
        raise IntegrityError(f"{path} cannot be read: {error}; run `simic curate` again") from error
    known = dict(zip(table.column("run_id").to_pylist(), table.column("versions_behind").to_pylist(), strict=True))
    return np.array([known.get(run_id) for run_id in run_ids], dtype=np.float64)
