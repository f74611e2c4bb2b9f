"""A Minari data set: Minari's own reader finds in it what replay holds."""

from __future__ import annotations

import sys
from pathlib import Path

import minari
import numpy as np
import pytest
import torch
from support.builders.export_snapshots import files_below, graph_store, uneven_snapshot
from support.builders.reports import BLUEPRINTS

from simic.contracts.errors import ConfigError
from simic.contracts.results.receipts import SnapshotManifest
from simic.replay.dataset import GraphDataset
from simic.replay.exporting import ExportCard
from simic.replay.exports import minari as minari_export
from simic.replay.exports.pyg import hetero_data


@pytest.fixture(scope="module")
def manifest(tmp_path_factory: pytest.TempPathFactory) -> SnapshotManifest:
    return uneven_snapshot(tmp_path_factory.mktemp("uneven") / "snapshot")


@pytest.fixture(scope="module")
def store(manifest: SnapshotManifest) -> GraphDataset:
    return graph_store(manifest)


@pytest.fixture(scope="module")
def written(manifest: SnapshotManifest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, ExportCard]:
    out = tmp_path_factory.mktemp("out") / "export"
    return out, write(manifest, out)


@pytest.fixture
def dataset(written: tuple[Path, ExportCard], monkeypatch: pytest.MonkeyPatch) -> minari.MinariDataset:
    out, card = written
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(out))
    return minari.load_dataset(card.dataset_id)


def write(manifest: SnapshotManifest, out: Path) -> ExportCard:
    return minari_export.write(manifest, "train", out, blueprints=BLUEPRINTS, code_version="1")


def test_minari_knows_it_by_name(dataset: minari.MinariDataset, written: tuple[Path, ExportCard]) -> None:
    _, card = written
    assert card.dataset_id in minari.list_local_datasets()
    assert (dataset.total_episodes, dataset.total_steps) == (card.episodes, card.steps)
    assert dataset.storage.metadata["snapshot"] == card.snapshot


def test_every_value_lies_in_the_spaces(dataset: minari.MinariDataset) -> None:
    for episode in dataset:
        for time in range(len(episode) + 1):
            seen = {name: values[time] for name, values in episode.observations.items()}
            assert dataset.observation_space.contains(seen)
        assert all(dataset.action_space.contains(action) for action in episode.actions)
    assert not dataset.action_space.contains(np.full(7, -2)), "below absent there is nothing"


def test_steps_are_those_of_the_replay_store(dataset: minari.MinariDataset, store: GraphDataset) -> None:
    for index, episode in enumerate(dataset):
        batch = store.batch(np.array([index]))
        length = int(store.sequences.lengths[index])
        assert len(episode) == length
        np.testing.assert_array_equal(episode.rewards, batch.rewards[:, 0].numpy())
        np.testing.assert_array_equal(episode.actions, batch.actions.numpy())
        np.testing.assert_array_equal(episode.infos["log_prob_behaviour"], batch.log_prob_behaviour[:, 0].numpy())
        np.testing.assert_array_equal(episode.infos["log_prob_heads"], batch.log_prob_heads.numpy())
        np.testing.assert_array_equal(episode.infos["return_to_go"], batch.returns[:, 0].numpy())
        np.testing.assert_array_equal(episode.infos["op_available"], batch.masks.op.numpy())
        np.testing.assert_array_equal(episode.infos["blueprint_available"], batch.masks.blueprint.numpy())
        assert not episode.terminations[:-1].any() and not episode.truncations[:-1].any()
        assert episode.terminations[-1] != episode.truncations[-1]
        is_terminated = float(batch.discounts[-1, 0]) == 0.0
        assert bool(episode.terminations[-1]) is is_terminated


def test_observations_are_the_graphs_with_padding_that_says_so(
    dataset: minari.MinariDataset, store: GraphDataset
) -> None:
    """T + 1 of them: the state before each step, then the final state."""
    sizes = set()
    for index, episode in enumerate(dataset):
        start, length = int(store.sequences.starts[index]), int(store.sequences.lengths[index])
        rows = [*range(start, start + length), store.step_count + index]
        for time, row in enumerate(rows):
            expected = hetero_data(store.table.take(torch.tensor([row])))
            seen = {name: values[time] for name, values in episode.observations.items()}
            np.testing.assert_array_equal(seen["context"], expected["context"].x[0].numpy())
            for node, column, flag in (("slot", "slots", "slot_valid"), ("layer", "layers", "layer_valid")):
                count = len(expected[node].x)
                sizes.add((node, count))
                np.testing.assert_array_equal(seen[column][:count], expected[node].x.numpy())
                assert not seen[column][count:].any()
                assert seen[flag].tolist() == [1] * count + [0] * (len(seen[flag]) - count)
            for edge, column in (
                (("layer", "connects", "layer"), "connects"),
                (("slot", "monitors", "layer"), "monitors"),
            ):
                pairs = expected[edge].edge_index.numpy().T
                np.testing.assert_array_equal(seen[column][: len(pairs)], pairs)
                assert (seen[column][len(pairs) :] == -1).all()
            if time < length:
                legal = episode.infos["slot_available"][time]
                slots = int(seen["slot_valid"].sum())
                whole = store.batch(np.array([index])).masks.slot
                before = int(episode.observations["slot_valid"][:time].sum())
                np.testing.assert_array_equal(legal[:slots], whole[before : before + slots].numpy())
                assert not legal[slots:].any()
    assert {("slot", 2), ("slot", 3)} <= sizes


def test_who_acted_is_told_where_there_were_weights(dataset: minari.MinariDataset, store: GraphDataset) -> None:
    metadata = list(dataset.storage.get_episode_metadata(range(dataset.total_episodes)))
    for index, (episode, told) in enumerate(zip(dataset, metadata, strict=True)):
        version = store.sequences.policy_versions[index]
        assert told["run_id"] == store.sequences.run_ids[index]
        assert told["host_key"] == store.sequences.host_keys[index]
        assert told.get("policy_version") == version
        assert told.get("branch_of") == store.sequences.branch_of[index]
        assert told.get("branch_step", -1) == store.sequences.branch_steps[index]
        found = episode.infos.get("policy_version")
        assert (found is None) == (version is None)
        if version is not None:
            assert set(found) == {version.encode()} and len(found) == len(episode)


def test_the_same_snapshot_gives_the_same_bytes(
    written: tuple[Path, ExportCard], manifest: SnapshotManifest, tmp_path: Path
) -> None:
    write(manifest, tmp_path / "again")
    assert files_below(tmp_path / "again") == files_below(written[0])


def test_without_the_extra_it_says_what_to_install(
    manifest: SnapshotManifest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "h5py", None)
    with pytest.raises(ConfigError, match=r"pip install -e .\.\[export\]"):
        write(manifest, tmp_path / "x")
    assert not list(tmp_path.iterdir())
