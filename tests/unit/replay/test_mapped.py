"""Snapshots mapped from files: the same batches, made once, made again when damaged, and never more in memory."""

from __future__ import annotations

import errno
import logging
import os
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from support.builders.batches import assert_same_batch, narrowed, small_store
from support.builders.reports import BLUEPRINTS, episode
from support.builders.snapshots import reseal, write_snapshot

from simic.contracts.errors import ContractError, TransientError
from simic.contracts.settings.training import ReplayConfig
from simic.replay import dataset as store_module
from simic.replay import mapped
from simic.replay.dataset import GraphDataset
from simic.replay.live.buffer import LiveBuffer
from simic.replay.rows import read_parts
from simic.runtime.files import disk_full_as_transient


def is_mapped(store: GraphDataset) -> bool:
    """Return whether the columns lie in files and only pages of them in memory."""
    return store._pages is not None


def map_store(snapshot: Path, cache: Path, *, split: str = "train", max_bytes: int = 1) -> GraphDataset:
    return GraphDataset.load(snapshot, split, blueprints=BLUEPRINTS, max_bytes=max_bytes, cache=cache)


@pytest.fixture
def in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> GraphDataset:
    """Of a snapshot in ``tmp_path``; what is mapped of it is written seven steps at a time."""
    monkeypatch.setattr(mapped, "_CHUNK_ROWS", 7)
    return small_store(tmp_path / "snapshot", 15)


def test_mapped_batches_are_those_in_memory(
    in_memory: GraphDataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = map_store(tmp_path / "snapshot", tmp_path / "cache")
    assert is_mapped(store) and not is_mapped(in_memory)
    for name, values in in_memory.sequences._asdict().items():
        assert np.array_equal(getattr(store.sequences, name), values), name
    assert store.germinated == in_memory.germinated and store.sets == in_memory.sets
    for ids in (np.arange(15), np.array([3, 3, 14, 0]), np.array([7])):
        assert_same_batch(store.batch(ids), in_memory.batch(ids))
    monkeypatch.setattr("simic.replay.dataset._PART_GRAPHS", 13)
    for one in (store, in_memory):
        parts = list(one.graphs())
        assert len(parts) > 2
        assert torch.equal(torch.cat([part.layer_x for part in parts]), in_memory.table.layer_x)
    whole = store.statistics_graphs()
    for name in ("context_x", "slot_x", "layer_x"):
        assert torch.equal(getattr(whole, name), getattr(in_memory.table, name)), name


def test_it_maps_only_what_is_larger_than_the_budget(in_memory: GraphDataset, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    assert not is_mapped(map_store(tmp_path / "snapshot", cache, max_bytes=in_memory.size_bytes))
    assert not cache.exists()
    assert is_mapped(map_store(tmp_path / "snapshot", cache, max_bytes=in_memory.size_bytes // 2))
    assert not is_mapped(GraphDataset.load(tmp_path / "snapshot", blueprints=BLUEPRINTS, max_bytes=1))


def test_wide_graphs_of_the_last_run_ids_count_in_full(tmp_path: Path) -> None:
    """Producers choose run ids, so no selection by them stands for the rest."""
    reports = [report for key in range(110) for report in episode(key)]
    last = max(report.run_id for report in reports)

    def widen(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
        for row in rows:
            for state in (row["state"], row["final_state"]):
                if row["run_id"] == last and state is not None:
                    state["graph"]["layers"] += [state["graph"]["layers"][-1]] * 500
        return rows

    manifest = write_snapshot(tmp_path / "snapshot", reports, split="train", change=widen)
    size = GraphDataset.of_snapshot(manifest, blueprints=BLUEPRINTS).size_bytes
    for limit in (size, size - 1):
        assert store_module._exceeds(manifest, "train", BLUEPRINTS, limit) is (limit < size)


def test_footers_of_the_files_tell_that_a_snapshot_fits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Reading all states takes seconds, and few snapshots come near the budget."""
    manifest = write_snapshot(tmp_path / "snapshot", [r for key in range(9) for r in episode(key)], split="train")
    size = GraphDataset.of_snapshot(manifest, blueprints=BLUEPRINTS).size_bytes
    units, most = store_module._unit_bytes(manifest, "train", BLUEPRINTS), store_module._most(manifest)
    counts = sum(store_module._counts(rows) for rows in read_parts(manifest, "train", 10, ("state", "final_state")))
    assert (most >= counts).all()
    assert size <= int(units @ most) < 3 * size
    monkeypatch.setattr(store_module, "read_parts", None)
    assert not store_module._exceeds(manifest, "train", BLUEPRINTS, 3 * size)


def test_columns_are_written_once_and_again_when_damaged(
    in_memory: GraphDataset, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    cache = tmp_path / "cache"
    map_store(tmp_path / "snapshot", cache)
    (folder,) = cache.iterdir()
    written = {path.name: path.stat().st_mtime_ns for path in folder.iterdir()}
    map_store(tmp_path / "snapshot", cache)
    assert {path.name: path.stat().st_mtime_ns for path in folder.iterdir()} == written
    for damage in (_flip, lambda path: path.unlink(), lambda path: path.write_bytes(path.read_bytes()[:-1])):
        damage(folder / "slot_x.npy")
        with caplog.at_level(logging.WARNING):
            again = map_store(tmp_path / "snapshot", cache)
        assert "rebuilding it from the snapshot" in caplog.text
        caplog.clear()
        assert_same_batch(again.batch(np.arange(15)), in_memory.batch(np.arange(15)))
    assert [path.name for path in cache.iterdir()] == [folder.name]


def test_trainings_that_map_at_the_same_time_wait_for_each_other(
    in_memory: GraphDataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Policies and Karn train under locks of their own; neither removes what the other is building."""
    small_store(tmp_path / "other", 5, first_key=30)
    write, begun, at_once = mapped._write, threading.Event(), []

    def slow(building: Path, *rest: Any) -> None:
        at_once.append(len(list((tmp_path / "cache").glob(f"{mapped._BUILDING}*"))))
        begun.set()
        time.sleep(0.5)
        write(building, *rest)

    monkeypatch.setattr(mapped, "_write", slow)
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(map_store, tmp_path / "snapshot", tmp_path / "cache")
        assert begun.wait(30)
        second = pool.submit(map_store, tmp_path / "other", tmp_path / "cache")
        assert (len(first.result()), len(second.result())) == (15, 5)
    assert at_once == [1, 1]
    assert len(list((tmp_path / "cache").iterdir())) == 2


def _flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-3] ^= 1
    path.write_bytes(bytes(content))


def test_another_vocabulary_or_snapshot_has_its_own_columns(in_memory: GraphDataset, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    map_store(tmp_path / "snapshot", cache)
    more = (*BLUEPRINTS, "unheard_of")
    wider = GraphDataset.load(tmp_path / "snapshot", blueprints=more, max_bytes=1, cache=cache)
    expected = GraphDataset.load(tmp_path / "snapshot", blueprints=more)
    assert_same_batch(wider.batch(np.arange(15)), expected.batch(np.arange(15)))
    small_store(tmp_path / "other", 5, first_key=30)
    assert len(map_store(tmp_path / "other", cache)) == 5
    assert len(list(cache.iterdir())) == 3


def test_d6_a_failure_while_writing_leaves_nothing_behind(
    in_memory: GraphDataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """D6 holds chunk by chunk: a row without its propensity far behind the first chunk stops everything."""
    monkeypatch.setattr(store_module, "_SAMPLE_ROWS", 7)
    reports = [report for key in range(6) for report in episode(key, horizon=8)]

    def spoil(rows: list[dict[str, object]]) -> list[dict[str, object]]:
        rows[40]["log_prob_behaviour"] = None
        return rows

    write_snapshot(tmp_path / "spoilt", reports, split="train", change=spoil)
    cache = tmp_path / "cache"
    with pytest.raises(ContractError, match="log_prob_behaviour is missing"):
        map_store(tmp_path / "spoilt", cache)
    assert list(cache.iterdir()) == []


def test_a_full_disk_while_columns_are_published_is_no_damage(
    in_memory: GraphDataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", refuse)
    with pytest.raises(TransientError, match="make space"), disk_full_as_transient():
        map_store(tmp_path / "snapshot", tmp_path / "cache")
    monkeypatch.undo()
    assert [path.name for path in (tmp_path / "cache").iterdir() if path.is_dir()] == []
    assert is_mapped(map_store(tmp_path / "snapshot", tmp_path / "cache"))


def test_what_a_killed_process_left_is_removed(in_memory: GraphDataset, tmp_path: Path) -> None:
    left = tmp_path / "cache" / ".building-left"
    left.mkdir(parents=True)
    (left / "slot_x.npy").write_bytes(b"half")
    store = map_store(tmp_path / "snapshot", tmp_path / "cache")
    assert is_mapped(store) and not left.exists()


def test_an_episode_in_two_places_is_refused(
    in_memory: GraphDataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_module, "_SAMPLE_ROWS", 7)
    reports = [report for key in range(4) for report in episode(key, horizon=8)]
    write_snapshot(tmp_path / "twice", reports, split="train", change=lambda rows: rows + rows[:8])
    with pytest.raises(ContractError, match="whole episodes"):
        map_store(tmp_path / "twice", tmp_path / "cache")


def test_a_split_among_others_is_mapped_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mapped, "_CHUNK_ROWS", 5)
    write_snapshot(tmp_path / "s", [r for key in range(30) for r in episode(key, horizon=4)], change=narrowed)
    for split in ("train", "validation", "test"):
        expected = GraphDataset.load(tmp_path / "s", split, blueprints=BLUEPRINTS)
        ids = np.arange(len(expected))
        found = map_store(tmp_path / "s", tmp_path / "cache", split=split)
        assert is_mapped(found) == bool(len(expected))
        if len(ids):
            assert_same_batch(found.batch(ids), expected.batch(ids))


def test_a_live_buffer_takes_experience_from_a_mapped_store(in_memory: GraphDataset, tmp_path: Path) -> None:
    store = map_store(tmp_path / "snapshot", tmp_path / "cache")
    live = LiveBuffer(ReplayConfig(capacity=500, max_mb=8), seed=0, clock=lambda: datetime(2026, 1, 6, tzinfo=UTC))
    assert_same_batch(live.batch(live.extend(store)), in_memory.batch(np.arange(15)))


PROBE = """
import os, resource, sys
from pathlib import Path
import numpy as np
from support.builders.reports import BLUEPRINTS
from simic.replay.dataset import GraphDataset

def resident():
    with open('/proc/self/statm') as file:
        return int(file.read().split()[1]) * resource.getpagesize()

snapshot, cache, budget = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
store = GraphDataset.load(snapshot, blueprints=BLUEPRINTS, max_bytes=budget, cache=cache)
assert store._pages is not None
store.batch(np.arange(4))
before, peak = resident(), 0
for at in range(0, len(store), 4):
    store.batch(np.arange(at, min(at + 4, len(store))))
    peak = max(peak, resident())
print(store.size_bytes, peak - before)
"""


def test_buffer001_memory_stays_within_the_budget_while_all_of_a_larger_store_is_read(tmp_path: Path) -> None:
    """Measured by the kernel in a process of its own; columns that are never released would come to their full size."""
    write_snapshot(tmp_path / "s", [r for key in range(12) for r in episode(key, horizon=20)], split="train")
    _repeat(tmp_path / "s", 60)
    budget = 8 << 20
    arguments = [sys.executable, "-c", PROBE, tmp_path / "s", tmp_path / "cache", str(budget)]
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])}
    for _ in range(2):  # the first makes the columns, the second reads them
        done = subprocess.run(
            [str(a) for a in arguments], env=environment, check=False, capture_output=True, text=True
        )  # fmt: skip
        assert not done.returncode, done.stderr
    size, grown = map(int, done.stdout.split())
    assert pq.read_metadata(tmp_path / "s" / "steps.parquet").num_rows == 60 * 240
    assert size > 2 * budget
    assert grown < budget


def test_buffer001_a_row_counts_with_all_its_edges(
    in_memory: GraphDataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once through all sequences, without the allowance per sequence, is at least the bytes of everything."""
    monkeypatch.setattr(mapped, "_PAGE_BYTES", 0)
    store = map_store(tmp_path / "snapshot", tmp_path / "cache")
    released: list[object] = []
    monkeypatch.setattr(mapped, "release_pages", released.append)
    pages = store._pages
    assert pages is not None
    pages._max_bytes = store.size_bytes * 4 // 5
    store.batch(np.arange(len(store)))
    assert released


def _repeat(snapshot: Path, times: int) -> None:
    """The same episodes again and again under other run ids, in a snapshot that is still whole."""
    steps, row_index = (pq.read_table(snapshot / name) for name in ("steps.parquet", "row_index.parquet"))
    at, copies = steps.schema.get_field_index("run_id"), []
    for index in range(times):
        ids = pa.array([f"{index:04x}{run_id[4:]}" for run_id in steps.column("run_id").to_pylist()])
        copies.append(steps.set_column(at, "run_id", ids))
    pq.write_table(pa.concat_tables(copies), snapshot / "steps.parquet")
    pq.write_table(pa.concat_tables([row_index] * times), snapshot / "row_index.parquet")
    reseal(snapshot)
    manifest = snapshot / "manifest.json"
    text = manifest.read_text()
    manifest.write_text(text.replace(f'"rows_out":{len(steps)}', f'"rows_out":{len(steps) * times}'))
