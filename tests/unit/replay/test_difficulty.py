"""How hard a host is: read from what curation wrote, never guessed."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.builders.learning import bandit_episodes
from support.builders.snapshots import reseal, write_snapshot

from simic.contracts.errors import ContractError
from simic.hosts.plugins import blueprint_names
from simic.replay.dataset import GraphDataset


def test_every_sequence_has_the_difficulty_of_its_host(tmp_path: Path) -> None:
    ranked = {key: (7 * key % 12) / 11 for key in range(11)}
    write_snapshot(tmp_path / "log", bandit_episodes(range(12)), split="train", difficulty=ranked)
    store = GraphDataset.load(tmp_path / "log", blueprints=blueprint_names())
    expected = [ranked.get(key, np.nan) for key in store.sequences.host_keys.tolist()]
    np.testing.assert_array_equal(store.difficulty, expected)


def test_mapped_columns_have_the_same_difficulty(tmp_path: Path) -> None:
    ranked = {key: key / 11 for key in range(12)}
    write_snapshot(tmp_path / "log", bandit_episodes(range(12)), split="train", difficulty=ranked)
    mapped = GraphDataset.load(tmp_path / "log", blueprints=blueprint_names(), max_bytes=1, cache=tmp_path / "cache")
    plain = GraphDataset.load(tmp_path / "log", blueprints=blueprint_names())
    np.testing.assert_array_equal(mapped.difficulty, plain.difficulty)
    np.testing.assert_array_equal(plain.to(plain.steps.rewards.device).difficulty, plain.difficulty)


def test_a_difficulty_out_of_range_is_refused(tmp_path: Path) -> None:
    write_snapshot(tmp_path / "log", bandit_episodes(range(12)), split="train", difficulty={0: 0.5})
    path = tmp_path / "log" / "difficulty.parquet"
    table = pq.read_table(path)
    pq.write_table(table.set_column(table.schema.get_field_index("difficulty"), "difficulty", pa.array([1.5])), path)
    reseal(tmp_path / "log")
    with pytest.raises(ContractError, match="every difficulty should be between 0 and 1"):
        _ = GraphDataset.load(tmp_path / "log", blueprints=blueprint_names()).difficulty


def test_data_that_come_from_no_snapshot_have_none(tmp_path: Path) -> None:
    write_snapshot(tmp_path / "log", bandit_episodes(range(12)), split="train")
    store = GraphDataset.load(tmp_path / "log", blueprints=blueprint_names())
    with pytest.raises(ContractError, match=r"has no difficulty\.parquet"):
        _ = store.difficulty
    bare = GraphDataset(store.sequences, store.steps, store.masks, store.table, store.blueprints)
    with pytest.raises(ContractError, match="come from no snapshot"):
        _ = bare.difficulty
