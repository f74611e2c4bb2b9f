"""Every kind of damage to a snapshot is found and named."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from support.builders.reports import episode, episodes
from support.builders.snapshots import reseal
from support.homes.pipeline import curate_all, land

from simic.contracts.errors import IntegrityError
from simic.contracts.results.snapshots import SnapshotCheck
from simic.runtime.home import Home
from simic.snapshots.manifest import Verify, read_manifest
from simic.snapshots.verify import check_snapshot, files_of


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    home = Home(tmp_path / "place")
    land(home, episodes(range(8)) + episode(9)[:5])
    return Path(curate_all(home).path)


def check(folder: Path, tmp_path: Path) -> SnapshotCheck:
    return check_snapshot(folder, tmp=tmp_path / "tmp")


def change_manifest(folder: Path, **changes: object) -> None:
    path = folder / "manifest.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def drop_last_step(folder: Path) -> None:
    table = pq.read_table(folder / "steps.parquet")
    pq.write_table(table.slice(0, table.num_rows - 1), folder / "steps.parquet")
    reseal(folder)


def rename(folder: Path) -> None:
    folder.rename(folder.with_name("0" * 16))


SPOILS: dict[str, tuple[Callable[[Path], object], str]] = {
    "flipped byte": (lambda d: flip(d / "steps.parquet"), "steps.parquet: expected SHA-256"),
    "longer": (lambda d: (d / "curation.json").write_bytes(b"{}"), "curation.json: expected .* bytes, found 2"),
    "lost": (lambda d: (d / "episodes.parquet").unlink(), "episodes.parquet: missing"),
    "added": (lambda d: (d / "extra").write_bytes(b""), "extra: not part of the snapshot"),
    "no manifest": (lambda d: (d / "manifest.json").unlink(), "cannot read manifest.json"),
    "torn manifest": (lambda d: (d / "manifest.json").write_bytes(b'{"digest"'), "not a manifest"),
    "forged digest": (lambda d: change_manifest(d, digest="0" * 64), "says digest 0{64}, but its files"),
    "forged gamma": (lambda d: change_manifest(d, gamma=0.5), "says gamma 0.5, but curation.json .* 0.99"),
    "forged family": (lambda d: change_manifest(d, reward_family="sparse"), "says reward_family sparse, .* shaped"),
    "forged reward": (lambda d: change_manifest(d, reward_digest="0" * 64), "says reward_digest 0{64}, but"),
    "forged rows": (lambda d: change_manifest(d, rows_out=7), "says 7 rows_out, it holds 160"),
    "forged episodes": (lambda d: change_manifest(d, episodes={"train": 99}), "says 99 train, it holds"),
    "forged reasons": (lambda d: change_manifest(d, rejected={"gap": 5}), "says 5 gap, it holds 0"),
    "rows not accounted": (lambda d: change_manifest(d, rows_in=1000), "rows_in is 1000, but .* are 165"),
    "step lost and resealed": (drop_last_step, "says 160 rows_out, it holds 159"),
}


def test_a_whole_snapshot_has_nothing_to_say(folder: Path, tmp_path: Path) -> None:
    found = check(folder, tmp_path)
    assert found.damage == []
    assert (found.folder, found.files) == (folder.name, 7)
    assert found.size_bytes == sum(path.stat().st_size for path in folder.iterdir() if path.name != "manifest.json")


@pytest.mark.parametrize(("spoil", "message"), SPOILS.values(), ids=SPOILS.keys())
def test_damage_is_found_and_named(folder: Path, tmp_path: Path, spoil: Callable[[Path], object], message: str) -> None:
    spoil(folder)
    found = check(folder, tmp_path)
    with pytest.raises(AssertionError, match=message):
        assert not found.damage, "\n".join(found.damage)


@pytest.mark.parametrize("changes", [{"gamma": 0.5}, {"reward_family": "sparse"}, {"reward_digest": None}])
def test_rewards_other_than_the_sealed_ones_are_believed_by_nobody(folder: Path, changes: dict[str, object]) -> None:
    """No digest covers the manifest itself; what training takes from it is held against the settings in the files."""
    assert read_manifest(folder).digest == read_manifest(folder, Verify.SIZES).digest
    change_manifest(folder, **changes)
    for verify in (Verify.ALL, Verify.SIZES):
        with pytest.raises(IntegrityError, match=f"says {next(iter(changes))} "):
            read_manifest(folder, verify)
    assert read_manifest(folder, Verify.NONE).path == str(folder)


def test_a_snapshot_in_anothers_folder_is_noticed(folder: Path, tmp_path: Path) -> None:
    moved = folder.rename(folder.with_name("0" * 16))
    assert any("in the folder 0000000000000000" in line for line in check(moved, tmp_path).damage)


def test_every_fault_is_told_not_just_the_first(folder: Path, tmp_path: Path) -> None:
    flip(folder / "steps.parquet")
    (folder / "episodes.parquet").unlink()
    (folder / "extra").write_bytes(b"")
    assert len(check(folder, tmp_path).damage) == 3


def test_progress_comes_to_the_number_of_files(folder: Path, tmp_path: Path) -> None:
    counted: list[int] = []
    total = files_of(folder)
    check_snapshot(folder, tmp=tmp_path / "tmp", on_file=counted.append)
    assert sum(counted) == total


@pytest.mark.parametrize("verify", [Verify.ALL, Verify.SIZES])
@pytest.mark.parametrize("kind", ["longer", "lost", "added", "no manifest", "torn manifest", "forged digest"])
def test_the_first_problem_is_raised_whether_or_not_bytes_are_read(folder: Path, kind: str, verify: Verify) -> None:
    spoil, message = SPOILS[kind]
    spoil(folder)
    with pytest.raises(IntegrityError, match=message):
        read_manifest(folder, verify)


def test_a_changed_byte_is_noticed_exactly_if_bytes_are_read(folder: Path) -> None:
    flip(folder / "steps.parquet")
    assert read_manifest(folder, Verify.SIZES).digest == read_manifest(folder, Verify.NONE).digest
    with pytest.raises(IntegrityError, match=r"steps.parquet: expected SHA-256"):
        read_manifest(folder)
