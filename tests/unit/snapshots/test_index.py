"""What a home holds: in order, with its readers; and which snapshot a prefix means."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from support.builders.reports import episode
from support.homes.champions import crown
from support.homes.lineage import FIRST, REJECTED, SECOND, judge, make_history, shelve_training
from support.homes.pipeline import NOW, curate_all, land

from simic.catalogue.query import query
from simic.contracts.errors import ConfigError
from simic.contracts.results.snapshots import PolicyStatus, SnapshotUse
from simic.ledgers.pins import set_pin
from simic.ledgers.policies import champion_versions
from simic.runtime.home import Home
from simic.snapshots.index import find_folder, list_snapshots, policy_statuses


@pytest.fixture(scope="module")
def history(tmp_path_factory: pytest.TempPathFactory) -> tuple[Home, list[str]]:
    home = Home(tmp_path_factory.mktemp("history"))
    return home, [manifest.digest for manifest in make_history(home)]


def test_snapshots_are_listed_oldest_first_with_who_learned_from_them(history: tuple[Home, list[str]]) -> None:
    """A policy that went on from another learned from that one's snapshot too, only not directly."""
    home, digests = history
    found = list_snapshots(home)
    assert [summary.digest for summary in found.snapshots] == digests
    assert found.unreadable == {}
    first, second, third = found.snapshots
    assert first.used_by == [
        SnapshotUse(policy=FIRST, standing=PolicyStatus.UNJUDGED, is_direct=True),
        SnapshotUse(policy=SECOND, standing=PolicyStatus.CHAMPION, is_direct=False),
        SnapshotUse(policy=REJECTED, standing=PolicyStatus.REJECTED, is_direct=False),
    ]
    assert [use.policy for use in second.used_by if use.is_direct] == [SECOND]
    assert third.used_by == [SnapshotUse(policy=REJECTED, standing=PolicyStatus.REJECTED, is_direct=True)]
    assert (first.rows, first.rejected, sum(first.episodes.values())) == (485, 5, 25)
    sizes = {path: path.stat().st_size for path in Path(first.path).iterdir()}
    assert first.held_bytes == sum(size for path, size in sizes.items() if path.name.startswith("part-")) > 0
    assert first.size_bytes == sum(sizes.values()) - first.held_bytes
    assert not first.is_pinned


def test_a_pin_shows_with_its_reason(tmp_path: Path) -> None:
    home = Home(tmp_path)
    land(home, episode(1))
    manifest = curate_all(home)
    set_pin(home, manifest.digest, is_pinned=True, reason="figure 3", at=NOW)
    (summary,) = list_snapshots(home).snapshots
    assert (summary.is_pinned, summary.pinned_because) == (True, "figure 3")
    shelve_training(home, FIRST, manifest, None, hour=1)
    assert query(home, "SELECT is_pinned, policies FROM snapshots") == [{"is_pinned": True, "policies": [FIRST]}]


def test_a_broken_manifest_is_named_and_hides_nothing_else(tmp_path: Path) -> None:
    home = Home(tmp_path)
    land(home, episode(1))
    manifest = curate_all(home)
    broken = home.snapshots / ("f" * 16)
    broken.mkdir()
    (broken / "manifest.json").write_bytes(b"{")
    found = list_snapshots(home)
    assert [summary.digest for summary in found.snapshots] == [manifest.digest]
    assert list(found.unreadable) == [broken.name]
    assert "not a manifest" in found.unreadable[broken.name]


def test_a_former_champion_and_a_promotion_without_a_training_are_known(tmp_path: Path) -> None:
    """After a rollback the earlier one is champion again; what the registry lists counts although nothing was kept."""
    home = Home(tmp_path)
    land(home, episode(1))
    manifest = curate_all(home)
    shelve_training(home, FIRST, manifest, None, hour=1)
    judge(home, FIRST, manifest, number=1, accepted=True, hour=2)
    judge(home, SECOND, manifest, number=2, accepted=True, hour=3)
    assert policy_statuses(home) == {FIRST: PolicyStatus.FORMER, SECOND: PolicyStatus.CHAMPION}
    again = champion_versions(home)[0].model_copy(update={"finished_at": NOW})
    crown(home, again, is_rollback=True)
    assert policy_statuses(home) == {FIRST: PolicyStatus.CHAMPION, SECOND: PolicyStatus.FORMER}
    (summary,) = list_snapshots(home).snapshots
    assert [(use.policy, use.standing) for use in summary.used_by] == [
        (FIRST, PolicyStatus.CHAMPION),
        (SECOND, PolicyStatus.FORMER),
    ]


def test_a_rejected_candidate_without_a_training_is_known(tmp_path: Path) -> None:
    home = Home(tmp_path)
    land(home, episode(1))
    judge(home, REJECTED, curate_all(home), number=1, accepted=False, hour=1)
    (summary,) = list_snapshots(home).snapshots
    assert summary.used_by == [SnapshotUse(policy=REJECTED, standing=PolicyStatus.REJECTED, is_direct=True)]


def test_a_prefix_means_one_snapshot_or_is_refused(tmp_path: Path, history: tuple[Home, list[str]]) -> None:
    home, digests = history
    for digest in digests:
        for length in (4, 16, 17, 64):
            assert find_folder(home, digest[:length]).name == digest[:16]
    shutil.copytree(home.snapshots / digests[0][:16], tmp_path / "data" / "snapshots" / digests[0][:16])
    other = Home(tmp_path)
    twin = other.snapshots / (digests[0][:8] + "0" * 8)
    twin.mkdir()
    with pytest.raises(ConfigError, match=f"several snapshots have a digest that begins with.*{twin.name}"):
        find_folder(other, digests[0][:8])
    assert find_folder(other, digests[0][:12]).name == digests[0][:16]


@pytest.mark.parametrize("name", ["", "abc", "ABCDEF", "../../x", "zzzz", "a" * 65, "0000"])
def test_what_is_no_digest_of_a_snapshot_is_a_config_error(history: tuple[Home, list[str]], name: str) -> None:
    with pytest.raises(ConfigError, match="`simic snapshots list` lists them"):
        find_folder(history[0], name)


def test_a_whole_digest_that_differs_after_the_folders_name_is_not_found(history: tuple[Home, list[str]]) -> None:
    home, (first, *_) = history
    with pytest.raises(ConfigError, match="no snapshot has a digest that begins"):
        find_folder(home, first[:16] + "0" * 48)
