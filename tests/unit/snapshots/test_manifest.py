"""One digest per content: whatever the layout, the threads, the hour; and no change goes unnoticed."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import duckdb
import numpy as np
import pytest
from support.builders.reports import episode, episodes
from support.homes.pipeline import NOW, FixedClock, curate_all, land

from simic.contracts.errors import IntegrityError, ResourceLimitError, TransientError
from simic.contracts.results.receipts import SnapshotManifest
from simic.contracts.rewards import RewardConfig
from simic.curation.statements import Statement, load_statements
from simic.lake.duck import connect, create_parquet_view
from simic.runtime.home import Home
from simic.runtime.locks import exclusive
from simic.snapshots.manifest import other_prices, read_manifest
from simic.snapshots.schema import SNAPSHOT_TABLES, schema_of

REPORTS = episodes(range(30)) + episode(40)[:7] + episode(41, governor_at=3)


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Home:
    home = Home(tmp_path_factory.mktemp("home"))
    land(home, REPORTS)
    return home


@pytest.fixture(scope="module")
def manifest(home: Home) -> SnapshotManifest:
    return curate_all(home)


def test_manifest_says_what_came_in_and_out(home: Home, manifest: SnapshotManifest) -> None:
    assert manifest.path == str(home.snapshots / manifest.digest[:16])
    assert read_manifest(Path(manifest.path)) == manifest
    assert [file.name for file in manifest.files] == [
        "curation.json",
        "difficulty.parquet",
        "episodes.parquet",
        "rejected.parquet",
        "steps.parquet",
    ]
    assert (manifest.rows_in, manifest.rows_out, manifest.rejected) == (611, 604, {"unfinished": 7})
    assert (manifest.gamma, manifest.reward_family, manifest.seed) == (0.99, "shaped", 7)
    assert not (home.tmp / "curate").exists()


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("batch", [23, 200])
def test_layout_order_threads_memory_and_hour_do_not_matter(
    tmp_path: Path, manifest: SnapshotManifest, threads: int, batch: int
) -> None:
    other = Home(tmp_path)
    shuffled = list(REPORTS)
    np.random.default_rng(batch).shuffle(shuffled)  # type: ignore[arg-type]
    land(other, shuffled[:300], batch_reports=batch)
    land(other, shuffled[200:], name="rest", batch_reports=batch)
    again = curate_all(other, threads=threads, memory_limit_mb=512 * threads, clock=FixedClock(NOW + timedelta(days=3)))
    assert again.digest == manifest.digest
    assert again.ledger_digest != manifest.ledger_digest


def test_the_same_again_keeps_the_first_manifest(home: Home, manifest: SnapshotManifest) -> None:
    before = {path: path.stat().st_mtime_ns for path in Path(manifest.path).iterdir()}
    assert curate_all(home, clock=FixedClock(NOW + timedelta(days=1)), threads=1) == manifest
    assert {path: path.stat().st_mtime_ns for path in Path(manifest.path).iterdir()} == before


@pytest.mark.parametrize(
    "settings", [{"gamma": 0.98}, {"ttl_days": 300}, {"reward": RewardConfig(rent=1.0)}, {"horizon": 21}]
)
def test_whatever_decides_over_rows_changes_the_digest(home: Home, manifest: SnapshotManifest, settings: dict) -> None:
    assert curate_all(home, **settings).digest != manifest.digest


def test_rules_are_part_of_the_digest(home: Home, manifest: SnapshotManifest, monkeypatch: pytest.MonkeyPatch) -> None:
    from simic.curation import run

    def commented(family: str) -> list[Statement]:
        return [item._replace(sql=item.sql + "\n-- the same in effect\n") for item in load_statements(family)]

    monkeypatch.setattr(run, "load_statements", commented)
    changed = curate_all(home)
    assert changed.digest != manifest.digest
    assert [file.sha256 for file in changed.files] == [file.sha256 for file in manifest.files]


SPOILS: dict[str, Callable[[Path], object]] = {
    "flipped byte": lambda d: flip(d / "steps.parquet"),
    "changed settings": lambda d: (d / "curation.json").write_bytes(b"{}"),
    "lost file": lambda d: (d / "episodes.parquet").unlink(),
    "added file": lambda d: (d / "extra").write_bytes(b""),
    "no manifest": lambda d: (d / "manifest.json").unlink(),
    "torn manifest": lambda d: (d / "manifest.json").write_bytes(b'{"digest"'),
}


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize("spoil", SPOILS.values(), ids=SPOILS.keys())
def test_changes_are_noticed_and_a_fresh_snapshot_takes_the_place_of_the_damaged(
    tmp_path: Path, spoil: Callable[[Path], object]
) -> None:
    home = Home(tmp_path)
    land(home, episode(1))
    manifest = curate_all(home)
    path = Path(manifest.path)
    spoil(path)
    with pytest.raises(IntegrityError):
        read_manifest(path)
    damaged = {file.name: file.read_bytes() for file in path.iterdir()}
    again = curate_all(home)
    assert (again.digest, again.path) == (manifest.digest, manifest.path)
    assert read_manifest(path) == again
    assert [entry.name for entry in home.snapshots.iterdir()] == [path.name]
    (kept,) = (home.data / "damaged").iterdir()
    assert {file.name: file.read_bytes() for file in kept.iterdir()} == damaged, "nothing is deleted unseen"


def test_a_manifest_with_another_digest_is_noticed(tmp_path: Path) -> None:
    home = Home(tmp_path)
    land(home, episode(1))
    manifest = curate_all(home)
    forged = manifest.model_copy(update={"digest": "0" * 64})
    (Path(manifest.path) / "manifest.json").write_text(forged.model_dump_json())
    with pytest.raises(IntegrityError, match="digest"):
        read_manifest(Path(manifest.path))


def test_a_moved_home_still_verifies_and_says_where_it_is(tmp_path: Path) -> None:
    home = Home(tmp_path / "old")
    land(home, episode(1))
    manifest = curate_all(home)
    home.root.rename(tmp_path / "new")
    moved = curate_all(Home(tmp_path / "new"))
    assert moved.path == manifest.path.replace("/old/", "/new/")
    assert moved.finished_at == manifest.finished_at


def test_a_damaged_part_stops_the_stage(tmp_path: Path) -> None:
    home = Home(tmp_path)
    land(home, episode(1))
    flip(next(home.experience.glob("*/*.parquet")))
    with pytest.raises(IntegrityError, match="SHA-256"):
        curate_all(home)


def test_one_curation_at_a_time(tmp_path: Path) -> None:
    home = Home(tmp_path)
    land(home, episode(1))
    with exclusive(home.locks / "curate", "curate"), pytest.raises(TransientError, match="curate"):
        curate_all(home)


def test_too_little_memory_is_named_as_a_setting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from simic.curation import run

    home = Home(tmp_path)
    land(home, episode(1))

    def fail(*_: object) -> None:
        raise duckdb.OutOfMemoryException("more")

    monkeypatch.setattr(run, "create_tables", fail)
    with pytest.raises(ResourceLimitError, match=r"curate\.memory_limit_mb"):
        curate_all(home)


def test_files_have_the_documented_columns(manifest: SnapshotManifest, tmp_path: Path) -> None:
    with connect(tmp=tmp_path, memory_limit_mb=256, threads=1) as connection:
        for name, columns in SNAPSHOT_TABLES.items():
            create_parquet_view(connection, f"{name}_told", [], schema_of(columns))
            create_parquet_view(connection, f"{name}_found", [Path(manifest.path) / f"{name}.parquet"], schema_of({}))
            told, found = (
                [row[:2] for row in connection.execute(f"DESCRIBE {name}_{which}").fetchall()]
                for which in ("told", "found")
            )
            assert found == told


def test_no_column_holds_the_hour(manifest: SnapshotManifest) -> None:
    for columns in SNAPSHOT_TABLES.values():
        assert not any(
            name.endswith("_at") or str(kind).startswith(("timestamp", "date")) for name, (kind, _) in columns.items()
        )


def test_statements_are_numbered_documented_and_bare() -> None:
    statements = [item for item in load_statements("basic") if item.file[0].isdigit()]
    numbers = [statement.file[:3] for statement in statements]
    assert numbers == sorted(set(numbers))
    for statement in statements:
        head = [line for line in statement.sql.splitlines() if line.startswith("-- ")]
        assert {"grain", "key", "inputs"} <= {line[3:].split(":")[0] for line in head}, statement.file
        code = "\n".join(line.split("--")[0] for line in statement.sql.splitlines())
        assert ";" not in code, statement.file


def test_prices_that_hardly_differ_are_told_apart(manifest: SnapshotManifest) -> None:
    prices = RewardConfig()
    assert other_prices(manifest, prices) == []
    others = prices.model_copy(update={"rent_parameters": 1_640_001, "rent": 3.0000001})
    assert other_prices(manifest, others) == ["rent 3 instead of 3.0000001", "rent_parameters 1640 instead of 1640001"]
