"""Old snapshots go; pinned ones, new ones and those behind a policy never do."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.builders.reports import episode
from support.homes.lineage import judge, shelve_training
from support.homes.pipeline import NOW, curate_all, land

from simic.catalogue.query import query
from simic.contracts.errors import ConfigError, IntegrityError, TransientError
from simic.contracts.results.receipts import SnapshotManifest
from simic.contracts.results.snapshots import PolicyStatus, SnapshotSummary, SnapshotUse
from simic.ledgers.pins import set_pin
from simic.runtime.home import Home
from simic.runtime.locks import exclusive
from simic.snapshots.manifest import read_manifest
from simic.snapshots.prune import _reasons, prune


def five(home: Home) -> list[SnapshotManifest]:
    """Snapshots, oldest first; nobody learned from them."""
    made = []
    for key in range(5):
        land(home, episode(key), name=f"k{key}")
        made.append(curate_all(home, clock=lambda key=key: NOW.replace(hour=10 + key)))
    return made


def left(home: Home) -> set[str]:
    return {path.name for path in home.snapshots.iterdir()}


def names(manifests: list[SnapshotManifest]) -> set[str]:
    return {manifest.digest[:16] for manifest in manifests}


def test_the_newest_the_pinned_and_the_learned_from_stay(tmp_path: Path) -> None:
    home = Home(tmp_path)
    made = five(home)
    set_pin(home, made[0].digest, is_pinned=True, reason="figure 3", at=NOW)
    shelve_training(home, "a" * 64, made[1], None, hour=1)
    shelve_training(home, "b" * 64, made[3], "a" * 64, hour=2)
    judge(home, "b" * 64, made[3], number=1, accepted=False, hour=3)
    plan = prune(home, 1, is_dry_run=True)
    assert [bool(item.kept_because) for item in plan.snapshots] == [True, True, False, True, True]
    assert plan.snapshots[0].kept_because == ["pinned: figure 3"]
    assert "policy bbbbbbbbbbbb (rejected)" in plan.snapshots[1].kept_because, "through the policy it went on from"
    own = [path for path in Path(made[2].path).iterdir() if not path.name.startswith("part-")]
    assert plan.freed_bytes == sum(path.stat().st_size for path in own) > 0, "parts have other names and stay"
    assert left(home) == names(made), "a dry run removes nothing"
    counted: list[int] = []
    done = prune(home, 1, is_dry_run=False, on_removed=counted.append)
    assert done == plan.model_copy(update={"is_dry_run": False})
    assert counted == [1]
    assert left(home) == names([made[0], made[1], made[3], made[4]])
    for manifest in (made[0], made[1], made[3], made[4]):
        assert read_manifest(Path(manifest.path)).digest == manifest.digest
    assert len(query(home, "FROM snapshots")) == 4
    assert not home.unfinished_snapshots.exists()


def test_what_only_rejected_policies_learned_from_goes_if_asked(tmp_path: Path) -> None:
    home = Home(tmp_path)
    made = five(home)
    shelve_training(home, "b" * 64, made[0], None, hour=2)
    judge(home, "b" * 64, made[0], number=1, accepted=False, hour=3)
    shelve_training(home, "c" * 64, made[1], None, hour=2)
    judge(home, "c" * 64, made[1], number=2, accepted=True, hour=3)
    plan = prune(home, 2, is_dry_run=True, spare_rejected=False)
    assert [bool(item.kept_because) for item in plan.snapshots] == [False, True, False, True, True]


@pytest.mark.parametrize("spare_rejected", [True, False])
def test_a_policy_that_waits_for_the_gate_keeps_its_snapshot(tmp_path: Path, spare_rejected: bool) -> None:
    home = Home(tmp_path)
    made = five(home)
    shelve_training(home, "b" * 64, made[0], None, hour=2)
    plan = prune(home, 1, is_dry_run=True, spare_rejected=spare_rejected)
    assert [bool(item.kept_because) for item in plan.snapshots] == [True, False, False, False, True]
    assert plan.snapshots[0].kept_because == ["policy bbbbbbbbbbbb (unjudged)"]


def test_an_unpinned_one_goes_again(tmp_path: Path) -> None:
    home = Home(tmp_path)
    made = five(home)
    for is_pinned in (True, False):
        set_pin(home, made[0].digest, is_pinned=is_pinned, reason=None, at=NOW)
    prune(home, 4, is_dry_run=False)
    assert left(home) == names(made[1:])


def test_the_columns_mapped_of_it_go_too(tmp_path: Path) -> None:
    home = Home(tmp_path)
    land(home, episode(1))
    first = curate_all(home, clock=lambda: NOW)
    last = curate_all(home, gamma=0.9, clock=lambda: NOW.replace(hour=20))
    for manifest in (first, last):
        (home.data / "columns" / f"{manifest.digest}-train").mkdir(parents=True)
    prune(home, 1, is_dry_run=False)
    assert [path.name for path in (home.data / "columns").iterdir()] == [f"{last.digest}-train"]


def test_a_pruned_snapshot_can_be_made_again(tmp_path: Path) -> None:
    """The rows are still in the lake, so the same digest comes back."""
    home = Home(tmp_path)
    land(home, episode(1))
    first = curate_all(home, clock=lambda: NOW)
    curate_all(home, gamma=0.9, clock=lambda: NOW.replace(hour=20))
    prune(home, 1, is_dry_run=False)
    assert first.digest[:16] not in left(home)
    assert curate_all(home).digest == first.digest


@pytest.mark.parametrize("name", ["run", "curate", "train", "export", "snapshots"])
def test_nothing_goes_while_a_stage_is_at_work(tmp_path: Path, name: str) -> None:
    home = Home(tmp_path)
    made = five(home)
    with exclusive(home.locks / name, "work"):
        assert prune(home, 1, is_dry_run=True).freed_bytes > 0
        with pytest.raises(TransientError):
            prune(home, 1, is_dry_run=False)
    assert left(home) == names(made)


def test_damage_stops_it_for_what_cannot_be_read_cannot_be_judged(tmp_path: Path) -> None:
    home = Home(tmp_path)
    made = five(home)
    (Path(made[2].path) / "manifest.json").write_bytes(b"")
    with pytest.raises(IntegrityError, match=Path(made[2].path).name):
        prune(home, 1, is_dry_run=False)
    assert left(home) == names(made)


@pytest.mark.parametrize("place", [20, 0])
def test_a_digest_that_is_not_that_of_the_files_stops_it(tmp_path: Path, place: int) -> None:
    """Pins and trainings are found by it: one wrong digit, and a pinned snapshot has neither."""
    home = Home(tmp_path)
    made = five(home)
    set_pin(home, made[0].digest, is_pinned=True, reason=None, at=NOW)
    digit = "0" if made[0].digest[place] != "0" else "1"
    wrong = made[0].digest[:place] + digit + made[0].digest[place + 1 :]
    path = Path(made[0].path) / "manifest.json"
    path.write_text(path.read_text().replace(f'"digest":"{made[0].digest}"', f'"digest":"{wrong}"'))
    assert wrong in path.read_text()
    with pytest.raises(IntegrityError, match=Path(made[0].path).name):
        prune(home, 1, is_dry_run=False)
    assert left(home) == names(made)


def test_a_registered_version_without_its_receipt_stops_it(tmp_path: Path) -> None:
    """The receipt alone says from which policy it went on, and so that the first snapshot is behind it."""
    home = Home(tmp_path)
    made = five(home)
    shelve_training(home, "a" * 64, made[0], None, hour=1)
    shelve_training(home, "b" * 64, made[1], "a" * 64, hour=2)
    judge(home, "b" * 64, made[1], number=7, accepted=True, hour=3)
    (receipt,) = (path for path in (home.receipts / "train").glob("*.json") if f'"digest":"{"b" * 64}"' in
                  path.read_text().replace(": ", ":"))  # fmt: skip
    receipt.unlink()
    with pytest.raises(IntegrityError, match=r"version 7 \(bbbbbbbbbbbb\)"):
        prune(home, 1, is_dry_run=False)
    assert left(home) == names(made)


def test_at_least_one_stays(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--keep 0"):
        prune(Home(tmp_path), 0, is_dry_run=True)


@given(
    is_new=st.booleans(),
    is_pinned=st.booleans(),
    standing=st.lists(st.sampled_from(list(PolicyStatus)), max_size=4),
    spare_rejected=st.booleans(),
)
def test_law_one_goes_exactly_if_nothing_speaks_for_it(
    is_new: bool, is_pinned: bool, standing: list[PolicyStatus], spare_rejected: bool
) -> None:
    summary = SnapshotSummary(
        digest="a" * 64, path="x", made_at=NOW, rows=1, rejected=0, episodes={}, reward_family="basic", gamma=0.9,
        size_bytes=1, held_bytes=1, is_pinned=is_pinned, pinned_because=None,
        used_by=[SnapshotUse(policy="b" * 64, standing=found, is_direct=True) for found in standing],
    )  # fmt: skip
    registered = {PolicyStatus.CHAMPION, PolicyStatus.FORMER, PolicyStatus.ACCEPTED, PolicyStatus.UNJUDGED}
    registered |= {PolicyStatus.REJECTED} if spare_rejected else set()
    stays = is_new or is_pinned or bool(registered & set(standing))
    spared = tuple(registered)
    assert bool(_reasons(summary, is_new, spared)) is stays
