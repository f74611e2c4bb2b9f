"""Snapshots on another file system than the home: made, listed, read, set aside and pruned like any others."""

from __future__ import annotations

import errno
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.builders.reports import episode
from support.homes.pipeline import NOW, curate_all, land

from simic.catalogue.query import query
from simic.contracts.errors import IntegrityError
from simic.contracts.results.receipts import SnapshotManifest
from simic.runtime.home import Home
from simic.snapshots.index import list_snapshots
from simic.snapshots.manifest import read_manifest
from simic.snapshots.parts import read_rows
from simic.snapshots.prune import prune

OTHER = Path("/dev/shm")  # noqa: S108 - a file system in memory, which Linux has


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Home]:
    """A home whose ``data/snapshots`` is a link to a folder of another file system, with one episode in the lake."""
    if not OTHER.is_dir() or OTHER.stat().st_dev == tmp_path.stat().st_dev:
        pytest.skip("no second file system")
    home = Home(tmp_path / "home")
    with tempfile.TemporaryDirectory(dir=OTHER) as folder:
        home.data.mkdir(parents=True)
        home.snapshots.symlink_to(folder)
        land(home, episode(1))
        yield home


def told(manifest: SnapshotManifest) -> int:
    splits = ("train", "validation", "test")
    return sum(batch.num_rows for split in splits for batch in read_rows(manifest, split, [], ["state"], batch_rows=64))


def test_they_are_made_whole_and_read(home: Home, tmp_path: Path) -> None:
    manifest = curate_all(home)
    assert Path(manifest.path).stat().st_dev != home.tmp.stat().st_dev
    assert [path.name for path in home.snapshots.iterdir()] == [manifest.digest[:16]]
    assert told(read_manifest(Path(manifest.path))) == manifest.rows_out > 0
    assert query(home, "SELECT snapshot FROM snapshots") == [{"snapshot": manifest.digest}]
    near = Home(tmp_path / "near")
    land(near, episode(1))
    assert curate_all(near).digest == manifest.digest, "the place is not part of the identity"


def test_a_part_is_copied_once(home: Home) -> None:
    first, second = (Path(curate_all(home, ttl_days=days).path) for days in (9.0, 8.0))
    assert first != second
    (part,) = (path for path in first.glob("part-*"))
    assert (second / part.name).stat().st_ino == part.stat().st_ino
    assert part.stat().st_ino != next(home.experience.rglob("part-*")).stat().st_ino


def test_a_part_is_copied_once_to_another_mount_of_one_file_system(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Links between two mounts fail, though both have the same device."""
    home, real = Home(tmp_path), os.link
    land(home, episode(1))

    def link(source: Path, target: Path) -> None:
        if home.experience in source.parents:
            raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))
        real(source, target)

    monkeypatch.setattr(os, "link", link)
    first, second = (Path(curate_all(home, ttl_days=days).path) for days in (9.0, 8.0))
    (part,) = first.glob("part-*")
    assert (second / part.name).samefile(part)


def test_damage_in_the_lake_is_found_though_a_snapshot_has_the_part(home: Home) -> None:
    curate_all(home, ttl_days=9.0)
    (part,) = home.experience.rglob("part-*")
    content = bytearray(part.read_bytes())
    content[len(content) // 2] ^= 1
    part.write_bytes(content)
    with pytest.raises(IntegrityError, match=f"{part}: expected SHA-256"):
        curate_all(home, ttl_days=8.0)
    part.unlink()
    with pytest.raises(IntegrityError, match=f"{part} is listed in the ledger but the file does not exist"):
        curate_all(home, ttl_days=8.0)


def test_a_damaged_one_is_set_aside_in_the_home_and_made_again(home: Home) -> None:
    manifest = curate_all(home)
    (Path(manifest.path) / "manifest.json").write_bytes(b"{")
    assert curate_all(home).digest == manifest.digest
    assert [path.name[:16] for path in (home.data / "damaged").iterdir()] == [manifest.digest[:16]]
    assert read_manifest(Path(manifest.path)).digest == manifest.digest


def test_they_are_pruned(home: Home) -> None:
    made = [
        curate_all(home, ttl_days=days, clock=lambda hour=hour: NOW.replace(hour=hour))
        for days, hour in ((9.0, 10), (8.0, 11))
    ]
    prune(home, 1, is_dry_run=False)
    assert [path.name for path in home.snapshots.iterdir()] == [made[1].digest[:16]]
    assert told(read_manifest(Path(made[1].path))) > 0


def test_what_a_killed_curation_left_is_neither_listed_nor_kept(home: Home) -> None:
    left = home.unfinished_snapshots / "snapshot"
    left.mkdir(parents=True)
    (left / "manifest.json").write_bytes(b"{")
    assert list_snapshots(home).snapshots == []
    assert list_snapshots(home).unreadable == {}
    assert query(home, "FROM snapshots") == []
    manifest = curate_all(home)
    assert [path.name for path in home.snapshots.iterdir()] == [manifest.digest[:16]]
