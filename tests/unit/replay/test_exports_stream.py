"""Episodes in chunks: whole, in order, bounded, and the same values however they are cut."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.builders.export_snapshots import graph_store, uneven_snapshot
from support.builders.reports import BLUEPRINTS, episode
from support.builders.snapshots import write_snapshot

from simic.contracts.errors import ContractError
from simic.contracts.results.receipts import SnapshotManifest
from simic.replay.exporting import ExportedEpisodes, stream_episodes


@pytest.fixture(scope="module")
def manifest(tmp_path_factory: pytest.TempPathFactory) -> SnapshotManifest:
    return uneven_snapshot(tmp_path_factory.mktemp("uneven") / "snapshot")


def chunks(manifest: SnapshotManifest, rows: int) -> list[ExportedEpisodes]:
    return list(stream_episodes(manifest, "train", BLUEPRINTS, rows))


@settings(max_examples=12, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(rows=st.integers(1, 400))
def test_law_cuts_change_nothing_and_no_chunk_is_much_longer_than_asked(manifest: SnapshotManifest, rows: int) -> None:
    store, found = graph_store(manifest), chunks(manifest, rows)
    sequences = store.sequences
    assert [info.run_id for chunk in found for info in chunk.infos] == list(sequences.run_ids)
    assert [info.policy_version for chunk in found for info in chunk.infos] == list(sequences.policy_versions)
    assert [info.branch_of for chunk in found for info in chunk.infos] == list(sequences.branch_of)
    steps = [-1 if info.branch_step is None else info.branch_step for chunk in found for info in chunk.infos]
    assert steps == sequences.branch_steps.tolist() and max(steps) == 9
    assert [info.host_key for chunk in found for info in chunk.infos] == sequences.host_keys.tolist()
    assert np.concatenate([chunk.lengths for chunk in found]).tolist() == sequences.lengths.tolist()
    for name, expected in (
        ("rewards", store.steps.rewards),
        ("returns", store.steps.returns),
        ("actions", store.steps.actions),
    ):
        np.testing.assert_array_equal(np.concatenate([getattr(chunk, name) for chunk in found]), expected.numpy())
    context = torch.cat([chunk.graphs.context_x[: len(chunk.rewards)] for chunk in found])
    assert torch.equal(context, store.table.context_x[: store.step_count])
    assert max(len(chunk.rewards) for chunk in found) <= 2 * rows + 20


def test_only_the_asked_split(tmp_path: Path) -> None:
    manifest = write_snapshot(tmp_path / "s", [report for key in range(40) for report in episode(key, horizon=4)])
    found: dict[str, set[Any]] = {
        split: {info.run_id for chunk in stream_episodes(manifest, split, BLUEPRINTS, 16) for info in chunk.infos}
        for split in ("train", "validation", "test")
    }
    assert found["train"] and found["validation"] and found["test"]
    assert sum(map(len, found.values())) == len(set().union(*found.values())) == 40


def test_rows_come_in_order_wherever_they_lie(tmp_path: Path) -> None:
    reports = [report for key in range(3) for report in episode(key, horizon=8)]
    shuffled = np.random.default_rng(0).permutation(len(reports))
    ordered = write_snapshot(tmp_path / "a", reports, split="train")
    strewn = write_snapshot(
        tmp_path / "b", reports, split="train", change=lambda rows: [rows[index] for index in shuffled]
    )
    for expected, found in zip(chunks(ordered, 10), chunks(strewn, 10), strict=True):
        assert (found.infos, found.actions.tolist()) == (expected.infos, expected.actions.tolist())
        np.testing.assert_array_equal(found.graphs.slot_x.numpy(), expected.graphs.slot_x.numpy())


def _no_version(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{**row, "controller": "learned", "policy_version": None} for row in rows]


def _ends_early(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{**row, "truncated": row["truncated"] or row["step"] == 0} for row in rows]


def _twice(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return rows + [row for row in rows if row["run_id"] == rows[0]["run_id"]]


@pytest.mark.parametrize("spoil", [_no_version, _ends_early, _twice])
def test_what_training_refuses_is_not_exported(tmp_path: Path, spoil: Any) -> None:
    reports = [report for key in range(3) for report in episode(key, horizon=8)]
    manifest = write_snapshot(tmp_path / "s", reports, split="train", change=spoil)
    with pytest.raises(ContractError):
        graph_store(manifest)
    for rows in (4, 100):
        with pytest.raises(ContractError):
            chunks(manifest, rows)
