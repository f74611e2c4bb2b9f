"""A snapshot holds the parts its states lie in: whatever the lake does next, the rows stay, and stay the same."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Iterator
from contextlib import closing, contextmanager
from hashlib import sha256
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow.fs import LocalFileSystem, SubTreeFileSystem
from support.builders.reports import episode, episodes
from support.builders.snapshots import told_rows
from support.homes.lakes import maintenance
from support.homes.pipeline import curate_all, land

from simic.contracts.errors import ContractError, IntegrityError, TransientError
from simic.contracts.results.receipts import SnapshotManifest
from simic.contracts.splits import Split, split_of
from simic.lake import duck
from simic.lake import lake as lake_module
from simic.lake import verified_files as sealed
from simic.lake.lake import open_lake
from simic.lake.log import committed_digests
from simic.lake.store import ArrowParts
from simic.ledgers import PARTS_LEDGER
from simic.ledgers.ledger import Ledger
from simic.runtime.home import Home
from simic.snapshots import parts
from simic.snapshots.manifest import Verify, read_manifest
from simic.snapshots.parts import link_parts, read_rows
from simic.snapshots.verify import check_snapshot

NESTED = ("state", "final_state", "available", "action")


def parts_of(manifest: SnapshotManifest) -> list[Path]:
    return sorted(Path(manifest.path).glob("part-*.parquet"))


def rewrite(manifest: SnapshotManifest, name: str, table: pa.Table) -> SnapshotManifest:
    """As a forger would, with digests that fit."""
    path, told = Path(manifest.path) / name, Path(manifest.path) / "manifest.json"
    old = next(file for file in (*manifest.files, *manifest.sources) if file.name == name)
    pq.write_table(table, path)
    new = old.model_copy(update={"sha256": sha256(path.read_bytes()).hexdigest(), "size_bytes": path.stat().st_size})
    found = json.loads(told.read_text())
    for kind in ("files", "sources"):
        found[kind] = [new.model_dump() if file["name"] == name else file for file in found[kind]]
    told.write_text(json.dumps(found))
    return read_manifest(Path(manifest.path), Verify.NONE)


@pytest.mark.parametrize("linked", [None, ".", "data", "data/snapshots"])
def test_rows_that_do_not_fit_in_memory_spill_within_the_home(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, linked: str | None
) -> None:
    """The system's own folder for temporary files may be small, and is not the home's to clean."""
    spilled: list[Path] = []

    @contextmanager
    def connect(**settings: Any) -> Iterator[duckdb.DuckDBPyConnection]:
        with duck.connect(**settings) as connection:
            ((folder,),) = connection.sql("SELECT current_setting('temp_directory')").fetchall()
            spilled.append(Path(folder))
            yield connection

    monkeypatch.setattr(parts, "connect", connect)
    root = tmp_path / "home"
    if linked is not None:
        (tmp_path / "large" / "disk").mkdir(parents=True)
        (root / linked).parent.mkdir(parents=True, exist_ok=True)
        (root / linked).symlink_to(tmp_path / "large" / "disk")
    home = Home(root)
    land(home, episodes(range(2)))
    with closing(read_rows(curate_all(home), Split.TRAIN.value, ["run_id"], [], batch_rows=100)) as rows:
        next(rows)
        assert spilled == list(home.tmp.glob("rows-*")) != []
    assert not list(home.tmp.glob("rows-*"))


def test_parts_take_no_disk_and_outlive_merging_and_retention(tmp_path: Path) -> None:
    home = Home(tmp_path)
    land(home, episodes(range(6)), batch_reports=25)
    manifest = curate_all(home)
    rows = told_rows(manifest, *NESTED)
    assert [path.stat().st_nlink for path in parts_of(manifest)] == [2] * 5
    assert maintenance(home).compact().parts_after == 1
    maintenance(home).retain(max_bytes=0)
    maintenance(home).vacuum(grace_minutes=0)
    assert not list(home.experience.glob("*/part-*"))
    assert open_lake(home).parts == ()
    assert read_manifest(Path(manifest.path)) == manifest
    assert told_rows(manifest, *NESTED) == rows


def test_only_parts_with_rows_in_the_snapshot_are_held(tmp_path: Path) -> None:
    home = Home(tmp_path)
    land(home, episode(1), name="whole")
    land(home, episode(2)[:5], name="unfinished")
    manifest = curate_all(home)
    assert manifest.rejected == {"unfinished": 5} and len(manifest.ledger_parts) == 2
    assert [path.name for path in parts_of(manifest)] == [Path(open_lake(home).parts[0].part).name]
    assert len(told_rows(manifest, *NESTED)) == 20


def test_where_there_are_no_links_parts_are_copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = Home(tmp_path)
    land(home, episodes(range(3)))
    linked = curate_all(home)
    rows = told_rows(linked, *NESTED)
    other = Home(tmp_path / "other")
    land(other, episodes(range(3)))

    def refuse(*_: object) -> None:
        raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))

    monkeypatch.setattr(os, "link", refuse)
    copied = curate_all(other)
    assert copied.digest == linked.digest
    assert [path.stat().st_nlink for path in parts_of(copied)] == [1]
    assert told_rows(copied, *NESTED) == rows


def test_how_rows_are_spread_over_parts_is_no_part_of_the_digest(tmp_path: Path) -> None:
    made = []
    for batch in (20, 7):
        home = Home(tmp_path / str(batch))
        land(home, episodes(range(4)), batch_reports=batch)
        made.append(curate_all(home))
    assert made[0].digest == made[1].digest
    assert made[0].sources != made[1].sources
    assert told_rows(made[0], *NESTED) == told_rows(made[1], *NESTED)


def test_another_content_is_another_snapshot(tmp_path: Path) -> None:
    """The states are under the digest, although no file of the snapshot's own has them.

    Of a host that judges, for statistics of training states would tell too.
    """
    key = next(key for key in range(100) if split_of(episode(key)[0].host.set, key) is Split.TEST)
    made = []
    for spread in (0.5, 0.6):
        home = Home(tmp_path / str(spread))
        reports = episode(key)
        layers = reports[3].state.graph.layers
        changed = layers[0].model_copy(update={"activation_spread": spread})
        graph = reports[3].state.graph.model_copy(update={"layers": [changed, *layers[1:]]})
        state = reports[3].state.model_copy(update={"graph": graph})
        land(home, [*reports[:3], reports[3].model_copy(update={"state": state}), *reports[4:]])
        made.append(curate_all(home))
    assert made[0].rows_out == made[1].rows_out == 20
    assert made[0].digest != made[1].digest


@pytest.mark.parametrize("harm", ["elsewhere", "beyond", "no such part"])
def test_a_row_that_is_not_where_it_is_said_to_be_is_refused(tmp_path: Path, harm: str) -> None:
    home = Home(tmp_path)
    land(home, episodes(range(2)))
    manifest = curate_all(home)
    row_index = pq.read_table(Path(manifest.path) / "row_index.parquet").to_pylist()
    if harm == "elsewhere":
        row_index[3], row_index[4] = row_index[4], row_index[3]
    elif harm == "beyond":
        row_index[3]["row"] = 10_000
    else:
        row_index[3]["part"] = 7
    forged = rewrite(manifest, "row_index.parquet", pa.Table.from_pylist(row_index))
    with pytest.raises(IntegrityError, match="rows are not where"):
        told_rows(forged, *NESTED)


def test_a_snapshot_without_sources_says_what_to_do(tmp_path: Path) -> None:
    home = Home(tmp_path)
    land(home, episode(1))
    manifest = curate_all(home)
    with pytest.raises(ContractError, match="earlier version"):
        told_rows(manifest.model_copy(update={"sources": []}), "state")


def test_a_part_that_is_damaged_is_not_sealed(tmp_path: Path) -> None:
    home = Home(tmp_path)
    land(home, episode(1))
    (path,) = (home.experience / part.part for part in open_lake(home).parts)
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    with pytest.raises(IntegrityError, match="SHA-256"):
        curate_all(home)
    assert not list(home.snapshots.glob("*")) and not (home.tmp / "curate").exists()


def test_a_part_that_is_damaged_is_named_where_it_lies(tmp_path: Path) -> None:
    home = Home(tmp_path)
    land(home, episode(1))
    (path,) = (home.experience / part.part for part in open_lake(home).parts)
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(IntegrityError, match=f"^{path}: expected .* bytes"):
        curate_all(home)


@pytest.fixture
def afar(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """A store that is elsewhere, as S3 is, and what is downloaded from it."""
    (tmp_path / "bucket" / "2026-01-06").mkdir(parents=True)
    filesystem = SubTreeFileSystem(str(tmp_path / "bucket"), LocalFileSystem())
    fetched: list[str] = []

    class Afar(ArrowParts):
        def fetch(self, name: str, target: Path) -> None:
            fetched.append(name)
            super().fetch(name, target)

    monkeypatch.setattr(lake_module, "_store", lambda _home, _state: Afar(filesystem, "s3://bucket"))
    yield fetched


def test_from_elsewhere_a_part_is_fetched_once_and_a_damaged_lender_is_passed_over(
    tmp_path: Path, afar: list[str]
) -> None:
    home = Home(tmp_path / "home")
    land(home, episodes(range(2)), batch_reports=20)
    first = curate_all(home)
    rows = told_rows(first, *NESTED)
    assert len(afar) == 2
    second = curate_all(home, gamma=0.9)
    assert len(afar) == 2 and second.digest != first.digest
    for lender in (first, second):
        part = parts_of(lender)[0]
        part.unlink()
        part.write_bytes(b"PAR1")
    again = curate_all(home)
    assert len(afar) == 3
    assert again.digest == first.digest and read_manifest(Path(again.path)) == again
    assert told_rows(again, *NESTED) == rows


def test_a_part_that_left_the_lake_meanwhile_is_no_damage(tmp_path: Path) -> None:
    home = Home(tmp_path)
    land(home, episodes(range(3)), batch_reports=20)
    before = open_lake(home)
    maintenance(home).compact()
    maintenance(home).vacuum(grace_minutes=0)
    (tmp_path / "held").mkdir()
    with pytest.raises(TransientError, match="meanwhile"):
        link_parts(before, tmp_path / "held")


def test_a_part_behind_a_symbolic_link_is_held_itself(tmp_path: Path) -> None:
    home = Home(tmp_path / "home")
    land(home, episode(1))
    (path,) = (home.experience / part.part for part in open_lake(home).parts)
    path.rename(tmp_path / "elsewhere.parquet")
    path.symlink_to(os.path.relpath(tmp_path / "elsewhere.parquet", path.parent))
    (held,) = parts_of(curate_all(home))
    assert not held.is_symlink() and held.samefile(tmp_path / "elsewhere.parquet")


def test_holding_a_part_is_no_change_of_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else every curation would make the next ingest read the whole lake again."""
    home = Home(tmp_path)
    land(home, episodes(range(3)), batch_reports=20)
    open_lake(home).check()
    hashed: list[Path] = []
    monkeypatch.setattr(sealed, "_check", lambda file, _advice: hashed.append(file.path))
    for _ in range(2):  # sealed anew, then found there already
        curate_all(home)
        open_lake(home).check()
    assert hashed == []
    (path,) = (home.experience / part.part for part in open_lake(home).parts[:1])
    os.utime(path)
    curate_all(home)
    open_lake(home).check()
    assert hashed == [path]


def test_a_place_with_another_content_under_the_same_id_is_refused(tmp_path: Path) -> None:
    home = Home(tmp_path)
    reports = episode(1)
    land(home, reports)
    manifest = curate_all(home)
    steps = pq.read_table(Path(manifest.path) / "steps.parquet").to_pylist()
    steps[3]["content_id"] = steps[4]["content_id"]
    schema = pq.read_schema(Path(manifest.path) / "steps.parquet")
    forged = rewrite(manifest, "steps.parquet", pa.Table.from_pylist(steps, schema=schema))
    with pytest.raises(IntegrityError, match="rows are not where"):
        told_rows(forged, *NESTED)


def test_a_forged_part_is_found_against_the_ledger(tmp_path: Path) -> None:
    home = Home(tmp_path)
    land(home, episodes(range(2)))
    manifest = curate_all(home)
    committed = committed_digests(Ledger(home.ledger / PARTS_LEDGER))
    folder = Path(manifest.path)
    assert check_snapshot(folder, tmp=tmp_path / "tmp", committed=committed).damage == []
    (part,) = parts_of(manifest)
    table = pq.read_table(part, partitioning=None)
    part.unlink()
    states = table.column("state").take([1, 0, *range(2, len(table))])
    rewrite(manifest, part.name, table.set_column(table.schema.get_field_index("state"), "state", states))
    (damage,) = check_snapshot(folder, tmp=tmp_path / "tmp", committed=committed).damage
    assert damage.startswith(f"{part.name}: the ledger never committed")
