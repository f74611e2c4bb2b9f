"""Only whole episodes teach; the others are counted by reason, row by row."""

from __future__ import annotations

import logging
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from support.builders.reports import episode, episodes, plain
from support.homes.pipeline import NOW, curate_all, drop, ingest_all

from simic.contracts.errors import ContractError
from simic.contracts.results.receipts import SnapshotManifest
from simic.ingestion import validate as check
from simic.runtime.home import Home

Rows = list[dict[str, Any]]


def rows_of(key: int = 50, **arguments: Any) -> Rows:
    return [plain(report) for report in episode(key, **arguments)]


def edited(change: Callable[[Rows], object], **arguments: Any) -> Rows:
    rows = rows_of(**arguments)
    change(rows)
    return rows


def end_at(rows: Rows, step: int) -> None:
    rows[step].update(terminated=True, final_state=rows[step + 1]["state"])


def lose_epoch(rows: Rows, step: int) -> None:
    """From this step on every state tells one epoch more, but for the last: nothing in one report shows it."""
    for row in rows[step:-1]:
        row["state"]["epoch"] += 1
    rows[-2].update(terminated=True, truncated=False, final_state={**rows[-1]["state"], "epoch": 20})
    rows.pop()


def raise_budget(rows: Rows, step: int) -> None:
    """From this step on the host may have one seed more."""
    for row in rows[step:]:
        row["state"]["seeds_max"] += 1
    rows[-1]["final_state"]["seeds_max"] += 1


def keep_other(row: dict[str, Any], accuracy: float) -> None:
    """The network to be kept is another than the one that runs."""
    row["metrics"]["validation_accuracy_after"] = accuracy
    row["final_state"]["committed_validation_accuracy"] = accuracy


BROKEN: dict[str, tuple[Rows, str]] = {
    "a gap": (edited(lambda rows: rows.pop(7)), "gap"),
    "no beginning": (edited(lambda rows: rows.pop(0)), "gap"),
    "no end": (edited(lambda rows: rows.pop()), "unfinished"),
    "one step twice": (
        edited(lambda rows: rows.append({**rows[4], "report_id": "f" * 32, "outcome": "SUCCESS"})),
        "overlap",
    ),
    "an end in the middle": (edited(lambda rows: end_at(rows, 5)), "ends_twice"),
    "another horizon": (rows_of(horizon=12), "other_horizon"),
    "accuracy that jumps between steps": (
        edited(lambda rows: rows[6]["metrics"].update(validation_accuracy_after=0.123)),
        "broken_chain",
    ),
    "an epoch that jumps between steps": (edited(lambda rows: lose_epoch(rows, 6)), "broken_chain"),
    "rent of other parameters than the germinated seed has": (
        edited(lambda rows: rows[2]["metrics"].update(rent_parameters=100)),
        "broken_chain",
    ),
    "two hosts in one run": (edited(lambda rows: rows[6]["host"].update(key=51)), "mixed_identity"),
    "two policies in one run": (edited(lambda rows: rows[6].update(policy_version="a" * 64)), "mixed_identity"),
    "two parents in one run": (
        edited(lambda rows: rows[6].update(branch_of="b" * 32), branch_of="a" * 32, branch_step=3),
        "mixed_identity",
    ),
    "two steps of branching in one run": (
        edited(lambda rows: rows[6].update(branch_step=4), branch_of="a" * 32, branch_step=3),
        "mixed_identity",
    ),
    "a branch in an episode of none": (
        edited(lambda rows: rows[6].update(branch_of="a" * 32, branch_step=0)),
        "mixed_identity",
    ),
    "two budgets of seeds in one run": (edited(lambda rows: raise_budget(rows, 6)), "mixed_identity"),
    "too old": (rows_of(issued_at=NOW - timedelta(days=365, minutes=1)), "expired"),
    "half too old": (rows_of(issued_at=NOW - timedelta(days=365, seconds=10)), "expired"),
}


def curated(home: Home, *rows: dict[str, Any]) -> SnapshotManifest:
    drop(home, "rows", [*episodes(range(3)), *rows])
    ingest_all(home)
    return curate_all(home)


def test_a_chain_that_is_off_within_its_tolerance_on_both_sides_of_every_step_is_curated(tmp_path: Path) -> None:
    """Such rows keep the contract, so no check of the whole stage may stumble over them."""
    rows = rows_of()
    for row in rows[:-1]:
        row["metrics"]["validation_accuracy_before"] += 0.9e-6
        row["metrics"]["validation_accuracy_after"] -= 0.9e-6
    manifest = curated(Home(tmp_path), *rows)
    assert (manifest.rows_out, manifest.rejected) == (60 + len(rows), {})


@pytest.mark.parametrize(("rows", "reason"), BROKEN.values(), ids=BROKEN.keys())
def test_unusable_episodes_are_rejected_whole_and_counted(tmp_path: Path, rows: Rows, reason: str) -> None:
    manifest = curated(Home(tmp_path), *rows)
    assert manifest.rejected == {reason: len(rows)}
    assert (manifest.rows_in, manifest.rows_out) == (60 + len(rows), 60)
    assert sum(manifest.episodes.values()) == 3
    listed = pq.read_table(Path(manifest.path) / "rejected.parquet").to_pylist()
    assert [(row["report_id"], row["reason"]) for row in sorted(listed, key=lambda row: row["report_id"])] == [
        (report_id, reason) for report_id in sorted(row["report_id"] for row in rows)
    ]


def test_further_horizons_are_used_and_pay_rent_by_their_own(tmp_path: Path) -> None:
    """An episode that changes its horizon midway is none of either."""
    home, both = Home(tmp_path), edited(lambda rows: rows[3]["state"].update(horizon=16), key=52)
    drop(
        home, "rows", [*rows_of(50, horizon=12), *rows_of(51), *both, *rows_of(53, horizon=16), *rows_of(54, horizon=8)]
    )
    ingest_all(home)
    manifest = curate_all(home, also_horizons=(16, 12))
    assert manifest.rejected == {"other_horizon": 20 + 8}
    rows = pq.read_table(Path(manifest.path) / "steps.parquet").to_pylist()
    horizons = {50: 12, 51: 20, 53: 16}
    assert {(row["host_key"], row["step"]) for row in rows} == {
        (key, n) for key, end in horizons.items() for n in range(end)
    }
    assert any(row["rent_parameters"] for row in rows if row["host_key"] == 50)
    for row in rows:
        expected = -3.0 * row["rent_parameters"] / 1640 / horizons[row["host_key"]]
        assert row["reward_rent"] == pytest.approx(expected, rel=0, abs=1e-12)


@pytest.mark.parametrize(
    "rows",
    [
        rows_of(governor_at=0),
        rows_of(governor_at=9),
        rows_of(truncate_at=4),
        rows_of(issued_at=NOW - timedelta(days=364)),
        edited(lambda rows: keep_other(rows[-1], 0.123)),
    ],
    ids=["panic at once", "panic", "truncated", "old", "committed network differs"],
)
def test_whole_episodes_of_every_kind_stay(tmp_path: Path, rows: Rows) -> None:
    manifest = curated(Home(tmp_path), *rows)
    assert (manifest.rejected, manifest.rows_out) == ({}, 60 + len(rows))


def test_an_accuracy_before_that_is_not_the_states_breaks_the_chain(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ingests refuse such a report; versions before this check did not, and their lakes hold them."""
    monkeypatch.setattr(check, "find_contradiction", lambda _: None)
    rows = edited(lambda rows: rows[6]["metrics"].update(validation_accuracy_before=0.123))
    assert curated(Home(tmp_path), *rows).rejected == {"broken_chain": 20}


@pytest.mark.parametrize("controller", ["learned", "learned-karn-" + "c" * 16])
def test_the_episode_of_a_policy_without_a_name_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, controller: str
) -> None:
    """Ingests refuse such a report; lakes hold those that landed before, and training refuses what has them."""
    monkeypatch.setattr(check, "find_contradiction", lambda _: None)
    manifest = curated(Home(tmp_path), *rows_of(controller=controller))
    assert manifest.rejected == {"unnamed_policy": 20}


def test_ttl_is_counted_from_the_clock_that_was_given(tmp_path: Path) -> None:
    home = Home(tmp_path)
    drop(home, "rows", [*episode(0, issued_at=NOW - timedelta(days=9)), *episode(1, issued_at=NOW)])
    ingest_all(home)
    assert curate_all(home, ttl_days=10).rejected == {}
    assert curate_all(home, ttl_days=8).rejected == {"expired": 20}


def test_nothing_usable_is_a_snapshot_that_says_why_nothing_landed_is_none(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    home = Home(tmp_path)
    with pytest.raises(ContractError, match="the lake holds no reports"):
        curate_all(home)
    drop(home, "rows", rows_of()[:-1])
    ingest_all(home)
    with caplog.at_level(logging.WARNING):
        manifest = curate_all(home)
    assert (manifest.rows_out, manifest.rejected) == (0, {"unfinished": 19})
    assert "kept 0 of 19 rows: 19 unfinished (of episodes without an end). Training refuses snapshot" in caplog.text
    assert manifest.episodes == {"train": 0, "validation": 0, "test": 0}
    assert pq.read_table(Path(manifest.path) / "steps.parquet").num_rows == 0
