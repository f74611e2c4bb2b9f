"""How hard the hosts of a snapshot are, for a curriculum: what curation wrote about them.

Shapes: E sequences (episodes).
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]
from numpy.typing import NDArray

from simic.contracts.errors import ContractError
from simic.contracts.results.receipts import SnapshotManifest
from simic.replay.decode import column, numbers, texts
from simic.replay.rows import Sequences
from simic.snapshots.schema import DIFFICULTY_COLUMNS, schema_of

__all__ = ["difficulty_of"]

_NAME = "difficulty.parquet"


def difficulty_of(manifest: SnapshotManifest, sequences: Sequences) -> NDArray[np.float64]:
    """Return [E]: the difficulty of each sequence's host among those of its set, from 0, the easiest, to 1.

    It is NaN for a host that curation did not rank, because it has branches only or is no training host.

    Raises:
        ContractError: if the snapshot has no such file, or one that is malformed.
    """
    path = Path(manifest.path) / _NAME
    if _NAME not in {file.name for file in manifest.files}:
        raise ContractError(
            f"snapshot {manifest.digest[:12]} has no {_NAME}, from which a curriculum reads how hard its hosts are: "
            "make a new one with `simic curate`"
        )
    try:
        table = pq.read_table(path, schema=schema_of(DIFFICULTY_COLUMNS))
    except (OSError, pa.ArrowException) as error:
        raise ContractError(f"{path} is malformed: {error}") from error
    sets, keys = texts(column(table, "set")), numbers(column(table, "host_key"), np.int64, "host_key").tolist()
    values = numbers(column(table, "difficulty"), np.float64, "difficulty")
    if not ((values >= 0.0) & (values <= 1.0)).all():
        raise ContractError(f"{path}: every difficulty should be between 0 and 1")
    known = dict(zip(zip(sets, keys, strict=True), values.tolist(), strict=True))
    hosts = zip(sequences.sets, sequences.host_keys.tolist(), strict=True)
    return np.array([known.get(host, np.nan) for host in hosts], dtype=np.float64)
