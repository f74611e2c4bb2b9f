"""Quality, staleness, byte budget and difficulty: what makes an episode useful, and to whom."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from support.builders.reports import EPOCH_ZERO, episode, episodes, plain
from support.homes.champions import crown
from support.homes.pipeline import NOW, PROVENANCE, curate_all, drop, ingest_all, land

from simic.contracts.field_report import FieldReport
from simic.contracts.results.receipts import PolicyVersion, SnapshotManifest
from simic.contracts.splits import Split, split_of
from simic.runtime.home import Home

Rows = list[dict[str, Any]]
TRAINED = [key for key in range(60) if split_of("benchmark", key) is Split.TRAIN][:3]


def table(manifest: SnapshotManifest, name: str = "episodes") -> Rows:
    return pq.read_table(Path(manifest.path) / f"{name}.parquet").to_pylist()


def edited(key: int, change: Callable[[dict[str, Any]], object]) -> Rows:
    rows = [plain(report) for report in episode(key)]
    for row in rows:
        change(row)
    return rows


def forget_contribution(row: dict[str, Any]) -> None:
    for state in (row["state"], row["final_state"]):
        for slot in state["slots"] if state else []:
            if slot["stage"] == "FOSSILIZED":
                slot.update(contribution=None)


def weaken(row: dict[str, Any]) -> None:
    for slot in row["state"]["slots"]:
        if slot["stage"] == "TRAINING":
            slot.update(gradient_health=0.5)


def make_unlikely(row: dict[str, Any]) -> None:
    if row["step"] < 5:
        head = row["log_prob_behaviour"]
        head.update(joint=head["joint"] - head["op"] - 12.0, op=-12.0)


def test_quality_is_a_product_of_shares(tmp_path: Path) -> None:
    """Known by the script: 11 of 20 states hold a seed that the host feels (7 of them a fossil), 14 a seed probed (3
    in training)."""
    home = Home(tmp_path)
    rows = [*edited(1, forget_contribution), *edited(2, weaken), *edited(3, make_unlikely), *edited(4, lambda _: None)]
    drop(home, "rows", [*rows, *map(plain, episode(5, script={}))])
    ingest_all(home)
    quality = {row["host_key"]: row["quality"] for row in table(curate_all(home))}
    told = [report.state.slots[0].stage.value for report in episode(1)]
    felt, fossils = sum(s in ("HOLDING", "FOSSILIZED") for s in told), told.count("FOSSILIZED")
    probed, training = sum(s != "DORMANT" for s in told), told.count("TRAINING")
    assert quality == pytest.approx({1: 1 - fossils / felt, 2: 1 - training / probed, 3: 0.75, 4: 1.0, 5: 1.0})
    assert 0 < fossils < felt and 0 < training < probed


def policy(letter: str, key: int, hours: int) -> list[FieldReport]:
    return episode(key, policy_version=letter * 64, issued_at=EPOCH_ZERO + timedelta(hours=hours))


def promote(home: Home, letter: str, hours: int) -> None:
    moment = EPOCH_ZERO + timedelta(hours=hours)
    version = PolicyVersion(
        **PROVENANCE._asdict(), started_at=moment, finished_at=moment, name="tamiyo", number=1,
        semantic_version="1.0.0", digest=letter * 64, reference="models:/tamiyo/1", aliases=[], previous=None,
        snapshot_digest="d" * 64, gate_digest="b" * 64, mlflow_run_id="r",
    )  # fmt: skip
    crown(home, version)


def test_staleness_counts_newer_policies_in_experience_and_ledger(tmp_path: Path) -> None:
    home = Home(tmp_path)
    land(home, [*policy("a", 1, 0), *policy("b", 2, 1), *policy("b", 3, 2), *policy("c", 4, 3), *episode(5)])
    before = curate_all(home)
    assert {row["host_key"]: row["versions_behind"] for row in table(before)} == {1: 2, 2: 1, 3: 1, 4: 0, 5: None}
    promote(home, "c", 4)
    promote(home, "d", 5)
    assert {row["host_key"]: row["versions_behind"] for row in table(curate_all(home))} == {
        1: 3, 2: 2, 3: 2, 4: 1, 5: None,
    }  # fmt: skip
    kept = curate_all(home, max_versions_behind=1)
    assert kept.rejected == {"stale": 60}
    assert {row["host_key"] for row in table(kept)} == {4, 5}, "no policy is never stale"


def test_only_whole_episodes_and_promotions_make_others_stale(tmp_path: Path) -> None:
    """Single reports of the untrusted bus, an episode without its end, and one of two policies age nobody."""
    home = Home(tmp_path)
    rows = [plain(report) for letter, key in (("a", 1), ("b", 2)) for report in policy(letter, key, key)]
    rows += [plain(policy(letter, key, 5)[0]) for key, letter in enumerate("cdef", start=10)]
    rows += [plain(report) for report in policy("0", 20, 6)[:-1]]
    mixed = [plain(report) for report in policy("1", 21, 7)]
    mixed[-1]["policy_version"] = "2" * 64
    drop(home, "rows", [*rows, *mixed])
    ingest_all(home)
    manifest = curate_all(home, max_versions_behind=1)
    assert {row["host_key"]: row["versions_behind"] for row in table(manifest)} == {1: 1, 2: 0}
    assert manifest.rejected == {"unfinished": 4 + 19, "mixed_identity": 20}
    assert curate_all(home, max_versions_behind=0).rejected == {"stale": 20, "unfinished": 23, "mixed_identity": 20}


def test_beyond_the_budget_whole_episodes_leave_the_oldest_and_least_useful_first(tmp_path: Path) -> None:
    home = Home(tmp_path)
    old, new = NOW - timedelta(days=9), NOW - timedelta(days=1)
    # 64 + 21 * 3 slots + 7 * 4 layers + 2 * 6 edges values of 8 bytes in each of 20 steps.
    room = 2**20 // (8 * (64 + 63 + 28 + 12) * 20)
    keys = range(10, 25 + room + 1)  # 15 old ones, and one new one more than there is room for
    rows = [plain(report) for key in keys for report in episode(key, issued_at=old if key < 25 else new)]
    for row in rows:
        if row["host"]["key"] == 30:
            make_unlikely(row)
    drop(home, "rows", rows)
    ingest_all(home)
    assert curate_all(home).rejected == {}
    kept = curate_all(home, max_mb=1)
    assert {row["host_key"] for row in table(kept)} == set(keys) - set(range(25)) - {30}
    assert kept.rejected == {"evicted": 16 * 20}, "whole episodes, all counted"
    assert curate_all(home, max_mb=2).rejected == {}


def test_an_episode_takes_the_room_of_all_its_steps(tmp_path: Path) -> None:
    """Its first report has a small graph, each later one 1,000 layers: 19 x 8 x 7,000 bytes, which exceeds 1 MiB."""
    home = Home(tmp_path)
    rows = [plain(report) for report in episode(0)]
    for row in rows[1:]:
        layers = row["state"]["graph"]["layers"]
        row["state"]["graph"]["layers"] = [*layers, *[layers[-1]] * (1000 - len(layers))]
    drop(home, "rows", [*rows, *map(plain, episode(1))])
    assert ingest_all(home).landed == 40
    assert curate_all(home, max_mb=1).rejected == {"evicted": 20}
    assert curate_all(home, max_mb=2).rejected == {}


def test_what_exceeds_the_budget_by_itself_takes_nothing_else_along(tmp_path: Path) -> None:
    """The newest decision has more branches than there is room for; older episodes fit."""
    home, old, new = Home(tmp_path), NOW - timedelta(days=9), NOW - timedelta(days=1)
    room = 2**20 // (8 * (64 + 63 + 28 + 12) * 20)
    tree = [plain(report) for report in episode(0, issued_at=new)]
    for seed in range(1, room + 1):
        branch = [plain(report) for report in episode(0, issued_at=new, seed=seed)]
        for row in branch:
            row.update(branch_of=tree[0]["run_id"], branch_step=2)
        tree += branch
    drop(home, "rows", [*tree, *(plain(report) for report in episodes(range(1, 4), issued_at=old))])
    ingest_all(home)
    kept = curate_all(home, max_mb=1)
    assert {row["host_key"] for row in table(kept)} == {1, 2, 3}
    assert kept.rejected == {"evicted": (room + 1) * 20}
    assert curate_all(home, max_mb=2).rejected == {}


def test_a_branch_leaves_with_its_parent_and_not_because_its_seed_failed(tmp_path: Path) -> None:
    """A decision whose failing branches are evicted would look harmless."""
    home, day = Home(tmp_path), NOW - timedelta(days=1)
    room = 2**20 // (8 * (64 + 63 + 28 + 12) * 20)
    keys = range(room // 2 + 1)  # with a branch each, one parent more than there is room for
    rows: list[dict[str, Any]] = []
    for key in keys:
        parent = [plain(report) for report in episode(key, issued_at=day)]
        branch = [plain(report) for report in episode(key, issued_at=day, seed=1)]
        for row in branch:
            row |= {"branch_of": parent[0]["run_id"], "branch_step": 1}
            make_unlikely(row)
        if key == 7:
            for row in parent:
                make_unlikely(row)
        rows += [*parent, *branch]
    drop(home, "rows", rows)
    ingest_all(home)
    assert curate_all(home).rejected == {}
    kept = table(curate_all(home, max_mb=1))
    assert Counter(row["host_key"] for row in kept) == {key: 2 for key in keys if key != 7}


def test_difficulty_ranks_training_hosts_by_what_they_returned(tmp_path: Path) -> None:
    home = Home(tmp_path)
    land(home, [*episodes(range(40)), *episodes(range(20), controller="random")])
    manifest = curate_all(home)
    told = table(manifest)
    returns: dict[int, list[float]] = {}
    for row in told:
        if row["split"] == "train":
            returns.setdefault(row["host_key"], []).append(row["episode_return"])
    found = {row["host_key"]: row for row in table(manifest, "difficulty")}
    assert set(found) == set(returns), "hosts that validate and test are nobody's curriculum"
    hardest = sorted(returns, key=lambda key: -np.mean(returns[key]))
    assert [found[key]["difficulty"] for key in hardest] == pytest.approx(np.linspace(0, 1, len(hardest)))
    for key, row in found.items():
        assert (row["episodes"], row["mean_return"]) == (len(returns[key]), pytest.approx(np.mean(returns[key])))


def test_a_host_under_two_families_is_one_host_with_one_difficulty(tmp_path: Path) -> None:
    """Reports of other producers may say so; two rows of one host would be ranked twice, and in either order."""
    home, key = Home(tmp_path), TRAINED[1]
    rows = [plain(report) for other in TRAINED for report in episode(other)]
    rows += [plain(report) for seed in (1, 2) for report in episode(key, seed=seed)]
    for row in rows[-20:]:
        row["host"]["family"] = "another"
    drop(home, "rows", rows)
    ingest_all(home)
    manifest = curate_all(home)
    returns = [row["episode_return"] for row in table(manifest) if row["host_key"] == key]
    found = table(manifest, "difficulty")
    assert [row["host_key"] for row in found] == TRAINED
    assert sorted(row["difficulty"] for row in found) == [0.0, 0.5, 1.0]
    (own,) = (row for row in found if row["host_key"] == key)
    assert (own["family"], own["episodes"]) == ("another", 3)
    assert own["mean_return"] == pytest.approx(np.mean(returns))
