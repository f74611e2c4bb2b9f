"""A home's data as Arrow tables."""

from __future__ import annotations

from pathlib import Path

import pyarrow.parquet as pq
import pytest
from support.builders.reports import episodes
from support.homes.pipeline import curate_all, land

import simic
from simic.contracts.errors import ConfigError, IntegrityError, ResourceLimitError
from simic.runtime.home import Home
from simic.snapshots.manifest import Verify, read_manifest
from simic.snapshots.schema import REPORT_COLUMNS


@pytest.fixture(scope="module")
def full(tmp_path_factory: pytest.TempPathFactory) -> simic.Home:
    home = Home(tmp_path_factory.mktemp("home"))
    home.create()
    land(home, episodes(range(8)))
    curate_all(home)
    return simic.Home(home.root)


def folder_of(home: simic.Home) -> Path:
    return next((home.root / "data" / "snapshots").iterdir())


def test_sql_gives_real_types(full: simic.Home) -> None:
    found = simic.sql("SELECT count(*) AS n, max(issued_at) AS newest FROM reports", home=full)
    assert found.column_names == ["n", "newest"]
    frame = found.to_pandas()
    assert frame["n"].item() == 160
    assert frame["newest"].dt.tz is not None
    assert simic.sql("FROM steps WHERE false", home=full).num_rows == 0
    assert list((full.root / "data" / "tmp").glob("sql-*")) == []


def test_sql_only_reads_and_keeps_its_limits(full: simic.Home, home: Path) -> None:
    for wrong in ("DROP VIEW steps", "SELECT no_such_column FROM steps", "FROM '/etc/passwd'"):
        with pytest.raises(ConfigError):
            simic.sql(wrong, home=full)
    with pytest.raises(ResourceLimitError):
        simic.sql("SELECT sum(range) FROM range(1000000000000)", home=full, timeout_s=0.5)
    with pytest.raises(ConfigError, match="no Simic home"):
        simic.sql("SELECT 1")
    assert not home.exists(), "asking makes no home"


def test_a_snapshot_is_read_with_the_states_of_its_reports(full: simic.Home) -> None:
    folder = folder_of(full)
    own = pq.read_table(folder / "steps.parquet")
    rows = 0
    for split in ("train", "validation", "test"):
        found = simic.read_snapshot(folder.name, split=split, home=full)
        assert set(found.column_names) == {*own.column_names, *REPORT_COLUMNS}
        assert found.num_rows == sum(name == split for name in own.column("split").to_pylist())
        keys = list(zip(found.column("run_id").to_pylist(), found.column("step").to_pylist(), strict=True))
        assert keys == sorted(keys)
        for state, step in zip(found.column("state").to_pylist(), found.column("step").to_pylist(), strict=True):
            assert state["epoch"] == step, "one epoch per step in these episodes"
        rows += found.num_rows
    assert rows == own.num_rows == read_manifest(folder, Verify.NONE).rows_out


def test_columns_come_in_the_order_asked(full: simic.Home) -> None:
    wanted = ["action", "reward", "run_id"]
    assert simic.read_snapshot(folder_of(full).name[:4], columns=wanted, home=full).column_names == wanted


def test_what_is_unknown_or_damaged_is_refused(full: simic.Home, tmp_path: Path) -> None:
    name = folder_of(full).name
    for options, message in (
        ({"split": "training"}, "known splits: train, validation, test"),
        ({"columns": ["state", "rewards"]}, r"unknown columns \['rewards'\].*reward"),
    ):
        with pytest.raises(ConfigError, match=message):
            simic.read_snapshot(name, home=full, **options)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="no snapshot has a digest"):
        simic.read_snapshot("0000", home=full)
    damaged = Home(tmp_path / "damaged")
    damaged.create()
    land(damaged, episodes(range(2)))
    curate_all(damaged)
    steps = next(damaged.snapshots.iterdir()) / "steps.parquet"
    content = bytearray(steps.read_bytes())
    content[len(content) // 2] ^= 1
    steps.chmod(0o644)
    steps.write_bytes(content)
    with pytest.raises(IntegrityError, match=r"steps\.parquet: expected SHA-256"):
        simic.read_snapshot(steps.parent.name, home=simic.Home(damaged.root))


@pytest.mark.parametrize(
    "limit",
    [{"timeout_s": v} for v in (0, -1, float("nan"), float("inf"))] + [{"memory_mb": v} for v in (0, 63, 100.5, 2**21)],
)
def test_a_limit_out_of_its_bounds_is_refused_by_name(full: simic.Home, limit: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match=f"{next(iter(limit))}: expected"):
        simic.sql("SELECT 1", home=full, **limit)  # type: ignore[arg-type]


def test_no_columns_and_a_home_by_its_path_are_refused_in_words(full: simic.Home) -> None:
    with pytest.raises(ConfigError, match="columns: expected at least one"):
        simic.read_snapshot(folder_of(full).name, columns=[], home=full)
    for path in (full.root, str(full.root)):
        for ask in (simic.sql, simic.read_snapshot, simic.load_policy):
            with pytest.raises(TypeError, match=r"expected a simic\.Home"):
                ask("2", home=path)  # type: ignore[operator]
