"""A snapshot holds the parts its states lie in: whatever the lake does next, the rows stay, and stay the same."""

from __future__ import annotations

import errno
import json
import os
from hashlib import sha256
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.homes import curate_all, land
from support.lakes import keeper
from support.reports import episode, episodes
from support.snapshots import told_rows

from simic.contracts.errors import ContractViolation, IntegrityError
from simic.contracts.receipts import SnapshotManifest
from simic.curation.snapshot import read_manifest, verify_snapshot
from simic.lake.lake import open_lake
from simic.runtime.settings import Home

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
    return read_manifest(Path(manifest.path))


def test_parts_take_no_disk_and_outlive_merging_and_retention(tmp_path: Path) -> None:
    home = Home(tmp_path)
    land(home, episodes(range(6)), batch_reports=25)
    manifest = curate_all(home)
    rows = told_rows(manifest, *NESTED)
    assert [path.stat().st_nlink for path in parts_of(manifest)] == [2] * 5
    assert keeper(home).compact().parts_after == 1
    keeper(home).retain(max_bytes=0)
    keeper(home).vacuum(grace_minutes=0)
    assert not list(home.experience.glob("*/part-*"))
    assert open_lake(home).parts == ()
    assert verify_snapshot(Path(manifest.path)) == manifest
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
    """The states are under the digest, although no file of the snapshot's own has them."""
    made = []
    for spread in (0.5, 0.6):
        home = Home(tmp_path / str(spread))
        reports = episode(1)
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
    places = pq.read_table(Path(manifest.path) / "places.parquet").to_pylist()
    if harm == "elsewhere":
        places[3], places[4] = places[4], places[3]
    elif harm == "beyond":
        places[3]["row"] = 10_000
    else:
        places[3]["part"] = 7
    forged = rewrite(manifest, "places.parquet", pa.Table.from_pylist(places))
    with pytest.raises(IntegrityError, match="rows are not where"):
        told_rows(forged, *NESTED)


def test_a_snapshot_without_sources_says_what_to_do(tmp_path: Path) -> None:
    home = Home(tmp_path)
    land(home, episode(1))
    manifest = curate_all(home)
    with pytest.raises(ContractViolation, match="earlier version"):
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
