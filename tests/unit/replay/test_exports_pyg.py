"""Shards for PyTorch Geometric: what comes out of the loader is what replay holds, to the last bit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from support.builders.export_snapshots import files_below, graph_store, uneven_snapshot
from support.builders.reports import BLUEPRINTS, episode
from support.builders.snapshots import write_snapshot
from torch_geometric.data import HeteroData
from torch_geometric.loader import DataLoader

from simic.contracts.errors import IntegrityError
from simic.contracts.results.receipts import SnapshotManifest
from simic.controllers.graph import EDGE_TYPES, NODE_TYPES
from simic.replay.dataset import GraphDataset
from simic.replay.exporting import ExportCard
from simic.replay.exports import pyg
from simic.replay.exports.pyg import PygExport, hetero_data


@pytest.fixture(scope="module")
def manifest(tmp_path_factory: pytest.TempPathFactory) -> SnapshotManifest:
    return uneven_snapshot(tmp_path_factory.mktemp("uneven") / "snapshot")


@pytest.fixture(scope="module")
def store(manifest: SnapshotManifest) -> GraphDataset:
    return graph_store(manifest)


@pytest.fixture(scope="module")
def export(manifest: SnapshotManifest, tmp_path_factory: pytest.TempPathFactory) -> PygExport:
    """In several shards."""
    out = tmp_path_factory.mktemp("out") / "export"
    write(manifest, out)
    return PygExport(out)


def write(manifest: SnapshotManifest, out: Path, shard_rows: int = 40) -> ExportCard:
    return pyg.write(manifest, "train", out, blueprints=BLUEPRINTS, code_version="1", shard_rows=shard_rows)


def assert_same_graph(found: HeteroData, expected: HeteroData) -> None:
    for node in NODE_TYPES:
        assert torch.equal(found[node].x, expected[node].x)
    for edge in EDGE_TYPES:
        assert torch.equal(found[edge].edge_index, expected[edge].edge_index), edge


def test_every_step_is_that_of_the_replay_store(export: PygExport, store: GraphDataset) -> None:
    assert len(export.card.shards) > 2
    assert len(export) == store.step_count
    for row, data in enumerate(export):
        assert_same_graph(data, hetero_data(store.table.take(torch.tensor([row]))))
        assert torch.equal(data.action, store.steps.actions[row : row + 1])
        assert torch.equal(data.log_prob_heads, store.steps.log_prob_heads[row : row + 1])
        assert torch.equal(data.log_prob_behaviour, store.steps.log_prob_behaviour[row : row + 1])
        assert torch.equal(data.reward, store.steps.rewards[row : row + 1])
        assert torch.equal(data.discount, store.steps.discounts[row : row + 1])
        assert torch.equal(data.return_to_go, store.steps.returns[row : row + 1])


def test_what_was_legal_when_it_ended_and_whose_it_is(export: PygExport, store: GraphDataset) -> None:
    for index, run_id in enumerate(store.sequences.run_ids):
        start, length = int(store.sequences.starts[index]), int(store.sequences.lengths[index])
        batch = store.batch(store.sequences.starts[index : index + 1] * 0 + index)
        steps = [export[start + step] for step in range(length)]
        assert torch.equal(torch.cat([data.op_available for data in steps]), batch.masks.op)
        assert torch.equal(torch.cat([data["slot"].available for data in steps]), batch.masks.slot)
        assert torch.equal(torch.cat([data.blueprint_available for data in steps]), batch.masks.blueprint)
        assert [int(data.step) for data in steps] == list(range(length))
        assert {int(data.episode) for data in steps} == {index}
        ends = [bool(data.terminated) or bool(data.truncated) for data in steps]
        assert ends == [False] * (length - 1) + [True]
        assert_same_graph(export.final(index), hetero_data(store.table.take(torch.tensor([store.step_count + index]))))
        info = export.info(index)
        assert (info.run_id, info.policy_version) == (run_id, store.sequences.policy_versions[index])
        assert (info.family, info.host_key) == (store.sequences.families[index], store.sequences.host_keys[index])


def test_d26_no_reward_leaves_a_trace_in_what_a_policy_sees(tmp_path: Path) -> None:
    """Other rewards and returns, the same graphs and masks, byte by byte; and no feature is named like a reward."""
    rows = episode(3) + episode(5, governor_at=7)
    stored = []
    for sign in (1.0, -3.0):

        def change(told: list[dict[str, Any]], sign: float = sign) -> list[dict[str, Any]]:
            return [{**row, "reward": sign * row["reward"], "return_to_go": sign * row["return_to_go"]} for row in told]

        manifest = write_snapshot(tmp_path / f"s{sign}", rows, split="train", change=change)
        card = write(manifest, tmp_path / f"e{sign}", 1000)
        stored.append(load_file(tmp_path / f"e{sign}" / "shard-00000.safetensors"))
    differing = {name for name in stored[0] if not torch.equal(stored[0][name], stored[1][name])}
    assert differing == {"reward", "return_to_go"}
    assert not [name for names in card.features.values() for name in names if "reward" in name or "return" in name]


def test_pygs_own_loader_batches_them_as_replay_does(export: PygExport, store: GraphDataset) -> None:
    """Across shards, and with hosts of other sizes side by side."""
    first = 0
    for batch in DataLoader(export, batch_size=32):
        count = batch.num_graphs
        expected = store.table.take(torch.arange(first, first + count))
        assert torch.equal(batch["context"].x, expected.context_x)
        assert torch.equal(batch["slot"].x, expected.slot_x)
        assert torch.equal(batch["layer"].x, expected.layer_x)
        for edge in EDGE_TYPES:
            assert torch.equal(batch[edge].edge_index, expected.edges[edge])
        assert torch.equal(batch.action, store.steps.actions[first : first + count])
        assert len(batch["slot"].available) == len(expected.slot_x)
        first += count
    assert first == store.step_count


def test_the_card_says_which_rows_these_are(export: PygExport, manifest: SnapshotManifest, store: GraphDataset) -> None:
    card = export.card
    assert (card.snapshot, card.split, card.reward_family, card.gamma) == (manifest.digest, "train", "basic", 0.99)
    assert (card.episodes, card.steps, card.sets) == (len(store), store.step_count, ["benchmark"])
    assert len(card.features["slot"]) == store.table.slot_x.shape[1]
    assert card.choices["blueprint"] == list(BLUEPRINTS)
    assert {file.path for file in card.files} == files_below(export.path).keys() - {"card.json"}
    assert manifest.digest in (export.path / "README.md").read_text()
    endings = {Path(name).suffix for name in files_below(export.path)}
    assert endings == {".json", ".md", ".safetensors"}, "nothing that anybody would unpickle"


def test_the_same_snapshot_gives_the_same_bytes(export: PygExport, manifest: SnapshotManifest, tmp_path: Path) -> None:
    write(manifest, tmp_path / "again")
    assert files_below(tmp_path / "again") == files_below(export.path)


def test_a_changed_byte_is_refused_when_its_shard_is_read(manifest: SnapshotManifest, tmp_path: Path) -> None:
    write(manifest, tmp_path / "x")
    shard = tmp_path / "x" / "shard-00001.safetensors"
    content = bytearray(shard.read_bytes())
    content[-1] ^= 1
    shard.write_bytes(content)
    export = PygExport(tmp_path / "x")
    assert export[0].reward.shape == (1,)
    with pytest.raises(IntegrityError, match=r"shard-00001\.safetensors"):
        export[len(export) - 1 if len(export.card.shards) == 2 else export.card.shards[0].steps]
    shard.unlink()
    with pytest.raises(IntegrityError, match="cannot be read"):
        PygExport(tmp_path / "x")[export.card.shards[0].steps]


def test_what_is_no_export_is_refused_and_ends_are_ends(export: PygExport, tmp_path: Path) -> None:
    with pytest.raises(IntegrityError, match=r"card\.json"):
        PygExport(tmp_path)
    for index in (-1, len(export)):
        with pytest.raises(IndexError):
            export[index]
    with pytest.raises(IndexError):
        export.final(export.card.episodes)
