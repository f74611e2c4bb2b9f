"""The lag of the policies that acted, from the table of episodes of a snapshot to a batch."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.builders.reports import BLUEPRINTS, episode
from support.builders.snapshots import write_snapshot

from simic.contracts.errors import IntegrityError
from simic.contracts.file_digest import FileDigest
from simic.contracts.results.receipts import SnapshotManifest
from simic.replay.dataset import GraphDataset
from simic.replay.policy_lag import policy_lags


@pytest.fixture
def manifest(tmp_path: Path) -> SnapshotManifest:
    """Three episodes; the policies of two of them are 3 and 0 versions behind."""
    bare = write_snapshot(tmp_path / "s", [one for key in range(3) for one in episode(key)], split="train")
    run_ids = sorted({one.run_id for key in range(3) for one in episode(key)})
    table = pa.table({"run_id": run_ids[::-1], "versions_behind": pa.array([None, 0, 3], pa.int64())})
    pq.write_table(table, tmp_path / "s" / "episodes.parquet")
    episodes = FileDigest(name="episodes.parquet", sha256="0" * 64, size_bytes=1)
    return bare.model_copy(update={"files": [*bare.files, episodes]})


def test_the_lag_of_each_episode_is_that_of_its_policy(manifest: SnapshotManifest) -> None:
    store = GraphDataset.of_snapshot(manifest, blueprints=BLUEPRINTS)
    np.testing.assert_array_equal(policy_lags(manifest, store.sequences.run_ids), [3.0, 0.0, np.nan])
    assert store.batch(np.arange(3)).policy_lag == 1.5
    assert store.batch(np.array([2])).policy_lag is None


def test_a_mapped_data_set_knows_the_same_lags(manifest: SnapshotManifest, tmp_path: Path) -> None:
    store = GraphDataset.of_snapshot(manifest, blueprints=BLUEPRINTS, max_bytes=1, cache=tmp_path / "columns")
    assert store.batch(np.arange(3)).policy_lag == 1.5
    assert store.memory_bytes == 1


def test_a_snapshot_without_a_table_of_episodes_knows_no_lag(manifest: SnapshotManifest) -> None:
    bare = manifest.model_copy(update={"files": manifest.files[:1]})
    assert np.isnan(policy_lags(bare, ["a", "b"])).all()


def test_a_damaged_table_is_no_table_without_lags(manifest: SnapshotManifest) -> None:
    (Path(manifest.path) / "episodes.parquet").write_bytes(b"PAR1")
    with pytest.raises(IntegrityError, match="simic curate"):
        policy_lags(manifest, ["a"])
