"""A branch keeps parent and step from the report to the training data, and no average takes it for behaviour."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from support.builders.reports import BLUEPRINTS, episode, episodes
from support.builders.snapshots import reseal
from support.homes.pipeline import curate_all, land

from simic.catalogue.query import query
from simic.contracts.field_report import FieldReport
from simic.contracts.results.receipts import SnapshotManifest
from simic.contracts.splits import Split, split_of
from simic.replay.dataset import GraphDataset
from simic.runtime.home import Home

Ancestry = dict[str, tuple[str | None, int | None]]
KEYS = [key for key in range(60) if split_of("benchmark", key) is Split.TRAIN][:12]
COLUMNS = ["run_id", "branch_of", "branch_step"]


def branches(key: int, *steps: int) -> list[FieldReport]:
    """Episodes of the host that never germinate, so that states and returns differ from those of the parent."""
    parent = episode(key)[0].run_id
    return [row for step in steps for row in episode(key, script={}, branch_of=parent, branch_step=step)]


def ancestry(rows: Iterable[Mapping[str, Any]]) -> Ancestry:
    """Parent and step of each episode; all rows of one must agree."""
    found = {tuple(row[name] for name in COLUMNS) for row in rows}
    assert len({run_id for run_id, _, _ in found}) == len(found)
    return {run_id: (parent, step) for run_id, parent, step in found}


def loaded(manifest: SnapshotManifest, cache: Path, max_bytes: int) -> Ancestry:
    found = GraphDataset.load(
        Path(manifest.path), "train", blueprints=BLUEPRINTS, cache=cache, max_bytes=max_bytes
    ).sequences
    steps = [None if step < 0 else step for step in found.branch_steps.tolist()]
    return dict(zip(found.run_ids, zip(found.branch_of, steps, strict=True), strict=True))


@pytest.mark.parametrize("max_bytes", [2**30, 1], ids=["in memory", "mapped"])
def test_parent_and_step_arrive_in_the_training_data(tmp_path: Path, max_bytes: int) -> None:
    reports = [*episodes(KEYS[:3]), *branches(KEYS[0], 0, 2, 19), *branches(KEYS[5], 7)]
    expected = {report.run_id: (report.branch_of, report.branch_step) for report in reports}
    assert len(expected) == 7 and len(set(expected.values())) == 5
    home = Home(tmp_path / "home")
    assert land(home, reports).landed == len(reports)
    manifest = curate_all(home)
    for view in ("reports", "steps", "episodes", "decisions", "rewards"):
        assert ancestry(query(home, f"FROM {view}")) == expected, view
    for name in ("steps", "episodes"):
        rows = pq.read_table(Path(manifest.path) / f"{name}.parquet", columns=COLUMNS).to_pylist()
        assert ancestry(rows) == expected, name
    assert loaded(manifest, tmp_path / "cache", max_bytes) == expected


def test_averages_of_behaviour_are_those_without_branches(tmp_path: Path) -> None:
    found = {}
    for name, more in (("without", []), ("with", branches(KEYS[0], 1, 4, 9)), ("others", branches(KEYS[-1], 3))):
        home = Home(tmp_path / name)
        land(home, [*episodes(KEYS[:-1]), *more])
        folder = Path(curate_all(home).path)
        assert pq.read_metadata(folder / "episodes.parquet").num_rows == len(KEYS) - 1 + len(more) // 20
        found[name] = pq.read_table(folder / "difficulty.parquet")
    assert found["without"].num_rows == len(KEYS) - 1
    for name in ("with", "others"):
        assert found[name].equals(found["without"]), name


def test_a_snapshot_of_branches_alone_is_read(tmp_path: Path) -> None:
    home = Home(tmp_path / "home")
    land(home, branches(KEYS[0], 3, 5))
    manifest = curate_all(home)
    assert pq.read_metadata(Path(manifest.path) / "difficulty.parquet").num_rows == 0
    parent = episode(KEYS[0])[0].run_id
    assert set(loaded(manifest, tmp_path / "cache", 2**30).values()) == {(parent, 3), (parent, 5)}


@pytest.mark.parametrize("max_bytes", [2**30, 1], ids=["in memory", "mapped"])
def test_a_snapshot_from_before_branches_is_of_no_branch(tmp_path: Path, max_bytes: int) -> None:
    home = Home(tmp_path / "home")
    land(home, episodes(KEYS[:2]))
    folder = Path(curate_all(home).path)
    steps = pq.read_table(folder / "steps.parquet").drop_columns(["branch_of", "branch_step"])
    pq.write_table(steps, folder / "steps.parquet")
    none: Ancestry = {episode(key)[0].run_id: (None, None) for key in KEYS[:2]}
    assert loaded(reseal(folder), tmp_path / "cache", max_bytes) == none
    assert ancestry(query(home, "FROM rewards")) == none
