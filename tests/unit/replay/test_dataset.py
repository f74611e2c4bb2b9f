"""The graph store: every column as the wire said it, refusals, and batches that keep sequences apart."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from support.builders.action_rows import actions_to_rows
from support.builders.batches import assert_same_batch, assert_same_graphs
from support.builders.export_snapshots import narrowed
from support.builders.reports import BLUEPRINTS, episode
from support.builders.snapshots import PART, reseal, write_snapshot

from simic.contracts.actions import HEADS, OPS, Op
from simic.contracts.batches import Observations
from simic.contracts.errors import ContractError, IntegrityError
from simic.contracts.field_report import FieldReport
from simic.controllers.features import encode
from simic.replay.dataset import GraphDataset
from simic.replay.decode import field, numbers, pairs, ragged
from simic.replay.graph_table import GraphTable

PRUNING = {0: "GERMINATE", 3: "PRUNE", 7: "GERMINATE", 9: "ADVANCE", 11: "FOSSILIZE"}


def some_reports() -> list[FieldReport]:
    """Whole, short, truncated and aborted episodes of one horizon."""
    parts = [
        episode(3, horizon=20),
        episode(5, horizon=20, script=PRUNING),
        episode(7, horizon=20, truncate_at=6),
        episode(8, horizon=20, governor_at=4),
        episode(9, horizon=20, controller="learned", policy_version="ab" * 32, seed=2),
        episode(3, horizon=20, script=PRUNING, branch_of=episode(3)[0].run_id, branch_step=0),
    ]
    return [report for part in parts for report in part]


@pytest.fixture
def reports() -> list[FieldReport]:
    return sorted(some_reports(), key=lambda report: (report.run_id, report.step))


@pytest.fixture
def store(tmp_path: Path, reports: list[FieldReport]) -> GraphDataset:
    write_snapshot(tmp_path / "snapshot", reports, split="train")
    return GraphDataset.load(tmp_path / "snapshot", blueprints=BLUEPRINTS)


def test_graphs_equal_those_of_the_wire_states(store: GraphDataset, reports: list[FieldReport]) -> None:
    states = [report.state for report in reports]
    finals = [report.final_state for report in reports if report.final_state is not None]
    assert_same_graphs(store.table.to_batch(), encode(Observations.from_states([*states, *finals], BLUEPRINTS)))


def test_actions_and_propensities_equal_the_wire(store: GraphDataset, reports: list[FieldReport]) -> None:
    expected = actions_to_rows([report.action for report in reports], BLUEPRINTS)
    np.testing.assert_array_equal(store.steps.actions.numpy(), expected)
    heads = [[getattr(report.log_prob_behaviour, head.value) or 0.0 for head in HEADS] for report in reports]
    np.testing.assert_array_equal(store.steps.log_prob_heads.numpy(), np.array(heads, dtype=np.float32))
    joint = [report.log_prob_behaviour.joint for report in reports]
    np.testing.assert_array_equal(store.steps.log_prob_behaviour.numpy(), np.array(joint, dtype=np.float32))


def test_what_germinated_is_known_by_name(store: GraphDataset, reports: list[FieldReport]) -> None:
    expected = {report.action.blueprint for report in reports if report.action.op is Op.GERMINATE}
    assert 0 < len(expected) < len(BLUEPRINTS)
    assert store.germinated == tuple(name for name in BLUEPRINTS if name in expected)


def test_masks_equal_the_wire(store: GraphDataset, reports: list[FieldReport]) -> None:
    by_run = {run_id: index for index, run_id in enumerate(store.sequences.run_ids)}
    for run_id, index in by_run.items():
        batch = store.batch(np.array([index]))
        own = [report for report in reports if report.run_id == run_id]
        for row, report in enumerate(own):
            slots = slice(int(batch.steps.slot_ptr[row]), int(batch.steps.slot_ptr[row + 1]))
            assert batch.masks.op[row].tolist() == report.available.op
            assert batch.masks.slot[slots].T.tolist() == report.available.slot
            legal = [name for name, is_legal in zip(BLUEPRINTS, batch.masks.blueprint[row], strict=True) if is_legal]
            assert legal == report.available.blueprint
    assert store.masks.slot.shape[1] == len(OPS)


def test_slot_masks_of_states_with_different_slots(tmp_path: Path, reports: list[FieldReport]) -> None:
    """Slots are counted per state: two here, three there, and an entry never slides to a neighbour."""
    write_snapshot(tmp_path / "ragged", reports, split="train", change=narrowed)
    store = GraphDataset.load(tmp_path / "ragged", blueprints=BLUEPRINTS)
    rows = pq.read_table(tmp_path / "ragged" / PART).to_pylist()
    ptr = store.table.slot_ptr.tolist()
    for index, row in enumerate(rows):
        assert store.masks.slot[ptr[index] : ptr[index + 1]].T.tolist() == row["available"]["slot"]
        legal = [name in row["available"]["blueprint"] for name in BLUEPRINTS]
        assert store.masks.blueprint[index].tolist() == legal


def test_batch_is_time_major_and_padded(store: GraphDataset, reports: list[FieldReport]) -> None:
    ids = np.array([4, 0, 2, 1, 3])
    batch = store.batch(ids)
    lengths = store.sequences.lengths[ids]
    assert batch.valid.shape == (20, 5)
    assert batch.valid.sum(0).tolist() == lengths.tolist()
    for place, sequence in enumerate(ids):
        own = [report for report in reports if report.run_id == store.sequences.run_ids[sequence]]
        length = len(own)
        rewards = store.steps.rewards[store.sequences.starts[sequence] :][:length]
        assert torch.equal(batch.rewards[:length, place], rewards)
        joint = torch.tensor([report.log_prob_behaviour.joint for report in own])
        assert torch.equal(batch.log_prob_behaviour[:length, place], joint)
        discounts = [0.0 if report.terminated else 0.99 for report in own]
        assert batch.discounts[:length, place].tolist() == pytest.approx(discounts)
        assert batch.is_cut[:, place].tolist() == [row >= length - 1 for row in range(20)]
        for name in ("rewards", "discounts", "log_prob_behaviour", "returns"):
            assert not getattr(batch, name)[length:, place].any(), name
    flat = batch.to_time_major(batch.actions)
    assert torch.equal(flat[batch.time, batch.sequence], batch.actions)
    assert not flat[~batch.valid].any()


def test_graphs_of_a_batch_are_those_of_its_sequences(store: GraphDataset, reports: list[FieldReport]) -> None:
    ids = np.array([3, 1])
    batch = store.batch(ids)
    own = [[r for r in reports if r.run_id == store.sequences.run_ids[i]] for i in ids]
    states = [report.state for part in own for report in part]
    finals = [final for part in own if (final := part[-1].final_state) is not None]
    assert_same_graphs(batch.steps, encode(Observations.from_states(states, BLUEPRINTS)))
    assert_same_graphs(batch.with_finals, encode(Observations.from_states([*states, *finals], BLUEPRINTS)))


def test_d5_successor_values_never_come_from_a_neighbour(store: GraphDataset) -> None:
    """A sequence's last successor is its own final state, also when it is shorter than the batch."""
    batch = store.batch(np.arange(5))
    values = torch.arange(1.0, batch.with_finals.graphs + 1)
    own, following = batch.successors(values)
    finals = values[-5:]
    for place, length in enumerate(batch.valid.sum(0).tolist()):
        assert torch.equal(following[: length - 1, place], own[1:length, place])
        assert following[length - 1, place] == finals[place]
        assert not own[length:, place].any()
        assert not following[length:, place].any()


@pytest.mark.parametrize("gamma", [0.9, 1.0])
def test_c1_the_learner_discounts_by_the_gamma_of_the_snapshots_rewards(
    tmp_path: Path, reports: list[FieldReport], gamma: float
) -> None:
    """C1: a terminated step has no successor."""
    write_snapshot(tmp_path / "s", reports, gamma=gamma, split="train")
    steps = GraphDataset.load(tmp_path / "s", blueprints=BLUEPRINTS).steps
    assert steps.discounts.tolist() == pytest.approx([0.0 if report.terminated else gamma for report in reports])


def test_returns_are_discounted_sums(store: GraphDataset) -> None:
    batch = store.batch(np.arange(5))
    expected = torch.zeros(5)
    for t in reversed(range(20)):
        expected = batch.rewards[t] + 0.99 * expected
        torch.testing.assert_close(batch.returns[t], torch.where(batch.valid[t], expected, 0.0), atol=1e-4, rtol=1e-5)


def test_policy_versions_and_hosts(store: GraphDataset, reports: list[FieldReport]) -> None:
    first = {report.run_id: report for report in reversed(reports)}
    sequences = store.sequences
    assert list(sequences.run_ids) == sorted(first)
    for index, run_id in enumerate(sequences.run_ids):
        assert sequences.policy_versions[index] == first[run_id].policy_version
        assert sequences.host_keys[index] == first[run_id].host.key
        assert sequences.families[index] == first[run_id].host.family


def test_only_the_asked_split_is_loaded(tmp_path: Path) -> None:
    keys = range(40)
    write_snapshot(tmp_path / "s", [r for key in keys for r in episode(key, horizon=4)])
    loaded = {
        split: set(GraphDataset.load(tmp_path / "s", split, blueprints=BLUEPRINTS).sequences.host_keys.tolist())
        for split in ("train", "validation", "test")
    }
    assert loaded["train"] and loaded["test"]
    assert sum(len(part) for part in loaded.values()) == len(set().union(*loaded.values())) == 40


def test_an_empty_split_is_empty(tmp_path: Path, reports: list[FieldReport]) -> None:
    write_snapshot(tmp_path / "s", reports, split="train")
    assert len(GraphDataset.load(tmp_path / "s", "test", blueprints=BLUEPRINTS)) == 0


def test_a_changed_byte_is_refused(tmp_path: Path, reports: list[FieldReport]) -> None:
    write_snapshot(tmp_path / "s", reports, split="train")
    path = tmp_path / "s" / "steps.parquet"
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(bytes(content))
    with pytest.raises(IntegrityError, match="SHA-256"):
        GraphDataset.load(tmp_path / "s", blueprints=BLUEPRINTS)
    path.unlink()
    with pytest.raises(IntegrityError, match="missing"):
        GraphDataset.load(tmp_path / "s", blueprints=BLUEPRINTS)


def _drop(name: str, head: str) -> Callable[[list[dict[str, Any]]], list[dict[str, Any]]]:
    def change(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
        rows[2][name] = {**rows[2][name], head: None}
        return rows

    return change


def _end_moved(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    rows[-1]["terminated"], rows[-2]["terminated"] = False, True
    return rows


def _twice(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    other = [{**row, "run_id": "f" * 32} for row in rows]
    return [*rows, *other, *rows]


def _without_row(index: int) -> Callable[[list[dict[str, Any]]], list[dict[str, Any]]]:
    return lambda rows: rows[:index] + rows[index + 1 :]


def _set(index: int, **values: Any) -> Callable[[list[dict[str, Any]]], list[dict[str, Any]]]:
    def change(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
        rows[index].update(values)
        return rows

    return change


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (_drop("log_prob_behaviour", "joint"), "log_prob_behaviour is missing in 1 of"),
        (_drop("log_prob_behaviour", "op"), "log_prob_behaviour is missing"),
        (_set(1, log_prob_behaviour=None), "log_prob_behaviour is missing"),
        (_without_row(3), "whole episodes"),
        (_without_row(0), "whole episodes"),
        (_set(0, final_state=None, reward=None), "reward must be finite"),
        (_set(19, final_state=None), "final_state must be"),
        (_set(19, terminated=False, truncated=False), "terminated or truncated"),
        (_set(2, terminated=True), "terminated or truncated"),
        (_end_moved, "terminated or truncated"),
        (_twice, "whole episodes"),
        (_drop("action", "op"), "action.op"),
    ],
)
def test_d6_rows_that_cannot_teach_are_refused(
    tmp_path: Path, change: Callable[[list[dict[str, Any]]], list[dict[str, Any]]], message: str
) -> None:
    write_snapshot(tmp_path / "s", episode(3), split="train", change=change)
    with pytest.raises(ContractError, match=message):
        GraphDataset.load(tmp_path / "s", blueprints=BLUEPRINTS)


def test_an_unknown_blueprint_is_refused(tmp_path: Path) -> None:
    write_snapshot(tmp_path / "s", episode(3), split="train")
    with pytest.raises(ContractError, match=r"unknown values \['mlp'\]"):
        GraphDataset.load(tmp_path / "s", blueprints=("attention", "gate"))


def test_a_column_that_is_missing_is_named(tmp_path: Path) -> None:
    write_snapshot(tmp_path / "s", episode(3), split="train")
    path = tmp_path / "s" / "steps.parquet"
    pq.write_table(pq.read_table(path).drop_columns(["reward"]), path)
    reseal(tmp_path / "s")
    with pytest.raises(ContractError, match="reward"):
        GraphDataset.load(tmp_path / "s", blueprints=BLUEPRINTS)


def test_buffer001_size_is_measured_and_proportional(tmp_path: Path) -> None:
    sizes = []
    for count in (4, 8):
        path = tmp_path / str(count)
        write_snapshot(path, [r for key in range(count) for r in episode(key)], split="train")
        sizes.append(GraphDataset.load(path, blueprints=BLUEPRINTS).size_bytes)
    assert sizes[1] == pytest.approx(2 * sizes[0], rel=0.01)


def test_d6_a_learned_policys_rows_name_their_version(tmp_path: Path) -> None:
    write_snapshot(tmp_path / "s", episode(3, controller="learned"), split="train")
    with pytest.raises(ContractError, match="has no policy_version"):
        GraphDataset.load(tmp_path / "s", blueprints=BLUEPRINTS)


DEVICES = [
    "cpu",
    pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")),
]


@pytest.mark.parametrize("device", DEVICES)
def test_batches_assembled_on_a_device_or_sent_there_are_the_same(store: GraphDataset, device: str) -> None:
    """Resident columns and pinned transfers are two ways to one batch."""
    target, ids = torch.device(device), np.array([4, 0, 2, 2])
    resident, expected = store.to(target), store.batch(ids)
    for batch in (resident.batch(ids), expected.to(target)):
        assert batch.valid.device.type == batch.steps.edges["layer", "connects", "layer"].device.type == device
        assert batch.masks.slot.device.type == batch.with_finals.slot_ptr.device.type == device
        assert_same_batch(batch.to(torch.device("cpu")), expected)
        values = torch.arange(1.0, batch.with_finals.graphs + 1, device=target)
        assert batch.successors(values)[1].device.type == device
        assert torch.equal(batch.valid_only(batch.returns), batch.returns[batch.valid]), "in the order of a mask"
        assert batch.most_slots == int(batch.steps.slot_ptr.diff().max())
    assert resident.size_bytes == store.size_bytes


@pytest.mark.parametrize("device", DEVICES)
def test_tables_with_local_edges_give_the_same_graphs(store: GraphDataset, device: str) -> None:
    table = GraphTable.of(store.table.to_batch()).to(torch.device(device))
    rows = torch.tensor([9, 0, 0, 61, 30])
    assert table.graphs == store.table.graphs
    assert_same_graphs(table.take(rows).to(torch.device("cpu")), store.table.take(rows))
    assert table.take(rows[:0]).graphs == 0


def test_slices_and_list_kinds_do_not_matter() -> None:
    """Arrow arrays may be slices with offsets of their own, or lists of fixed size."""
    lists = pa.array([[[9, 9]], [[1, 2], [3, 4]], [], [[5, 6]]]).slice(1)
    flat, ptr = pairs(lists, "x")
    assert flat.tolist() == [[1, 3, 5], [2, 4, 6]]
    assert ptr.tolist() == [0, 2, 2, 3]
    fixed = pa.array([[[1, 2], [3, 4]], []], type=pa.list_(pa.list_(pa.int64(), 2)))
    assert pairs(fixed, "x")[0].tolist() == [[1, 3], [2, 4]]
    assert pairs(fixed.slice(1), "x")[1].tolist() == [0, 0]
    width_two = pa.array([[1, 2], [3, 4]], type=pa.list_(pa.int64(), 2)).slice(1)
    assert ragged(width_two, "x").values.tolist() == [3, 4]
    struct = pa.array([{"a": 1}, {"a": 2}, None]).slice(1)
    assert numbers(field(struct, "a"), np.float32, "a").tolist()[0] == 2.0
    assert np.isnan(numbers(field(struct, "a"), np.float32, "a")[1])
    with pytest.raises(ContractError, match="null"):
        ragged(pa.array([[1], None]), "x")
    with pytest.raises(ContractError, match="null"):
        numbers(pa.array([1, None]), np.int32, "x")
