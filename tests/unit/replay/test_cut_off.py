"""Episodes that were not logged to their end are counted on the hosts that judge, and on no others."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.builders.reports import episode, plain
from support.homes.pipeline import curate_all, drop, ingest_all

from simic.contracts.errors import ContractError, IntegrityError
from simic.contracts.results.receipts import SnapshotManifest
from simic.contracts.splits import Split, split_of
from simic.replay import cut_off
from simic.replay.cut_off import cut_off_episodes
from simic.runtime.home import Home

Rows = list[dict[str, Any]]
KEYS = {split: [key for key in range(1000) if split_of("benchmark", key) is split] for split in Split}
SPOILED: dict[str, Callable[[Rows], object]] = {
    "unfinished": lambda rows: rows.pop(),
    "gap": lambda rows: rows.pop(7),
    "overlap": lambda rows: rows.append({**rows[4], "report_id": "f" * 32, "outcome": "SUCCESS"}),
    "ends_twice": lambda rows: rows[5].update(terminated=True, final_state=rows[6]["state"]),
    "mixed_identity": lambda rows: rows[6].update(policy_version="a" * 64),
    "broken_chain": lambda rows: rows[6]["metrics"].update(validation_accuracy_after=0.123),
}


@pytest.fixture(scope="module")
def spoiled(tmp_path_factory: pytest.TempPathFactory) -> SnapshotManifest:
    """One episode per reason on test hosts, three whole ones, one with another horizon, and others on other hosts."""
    home = Home(tmp_path_factory.mktemp("home"))
    keys = iter(KEYS[Split.TEST])
    episodes = [rows_of(next(keys)) for _ in range(3)] + [rows_of(next(keys), horizon=12)]
    for change in SPOILED.values():
        episodes.append(rows_of(next(keys)))
        change(episodes[-1])
    episodes += [rows_of(key)[:-1] for key in (KEYS[Split.TRAIN][0], KEYS[Split.VALIDATION][0])]
    drop(home, "rows", [row for rows in episodes for row in rows])
    ingest_all(home)
    return curate_all(home)


def rows_of(key: int, **options: Any) -> Rows:
    return [plain(report) for report in episode(key, **options)]


def test_each_reason_counts_on_the_hosts_that_judge(spoiled: SnapshotManifest) -> None:
    assert set(spoiled.rejected) == {*SPOILED, "other_horizon"}
    found = cut_off_episodes(spoiled, ["benchmark"])
    assert {(one.set, one.behaviour) for one in found if one.reason != "mixed_identity"} == {("benchmark", "explore")}
    both = [one for one in found if one.reason == "mixed_identity"]
    assert [one.behaviour for one in both] == ["a" * 64, "explore"], "it may belong to either"
    assert len({one.run_id for one in both}) == 1
    assert sorted({one.reason for one in found}) == sorted(SPOILED)
    assert len(found) == len(SPOILED) + 1
    assert cut_off_episodes(spoiled, ["varied"]) == []


def test_the_file_is_read_in_batches(spoiled: SnapshotManifest, monkeypatch: pytest.MonkeyPatch) -> None:
    found, sizes, distinct = cut_off_episodes(spoiled, ["benchmark"]), list[int](), cut_off._distinct

    def counted(batch: pa.RecordBatch) -> list[dict[str, Any]]:
        sizes.append(batch.num_rows)
        return distinct(batch)

    monkeypatch.setattr(cut_off, "_BATCH_ROWS", 7)
    monkeypatch.setattr(cut_off, "_distinct", counted)
    assert cut_off_episodes(spoiled, ["benchmark"]) == found
    assert max(sizes) <= 7
    assert sum(sizes) > 50


def test_what_a_byte_budget_evicts_is_missing_from_the_log(tmp_path: Path) -> None:
    """The budget keeps episodes of high quality, which says how a training went."""
    home = Home(tmp_path)
    drop(home, "rows", [row for key in KEYS[Split.TEST] for row in rows_of(key)])
    ingest_all(home)
    manifest = curate_all(home, max_mb=1)
    evicted = manifest.rejected["evicted"] // 20
    assert 0 < evicted < len(KEYS[Split.TEST])
    assert Counter(one.reason for one in cut_off_episodes(manifest, ["benchmark"])) == {"evicted": evicted}


def test_a_snapshot_that_does_not_tell_the_hosts_is_no_evidence(spoiled: SnapshotManifest, tmp_path: Path) -> None:
    elsewhere = spoiled.model_copy(update={"path": str(tmp_path)})
    with pytest.raises(IntegrityError, match=r"rejected\.parquet cannot be read"):
        cut_off_episodes(elsewhere, ["benchmark"])
    table = pq.read_table(Path(spoiled.path) / "rejected.parquet")
    pq.write_table(table.drop_columns(["host_key", "controller"]), tmp_path / "rejected.parquet")
    with pytest.raises(ContractError, match="has no column host_key, controller; run `simic curate` again"):
        cut_off_episodes(elsewhere, ["benchmark"])
