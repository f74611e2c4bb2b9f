"""Judging experience lands and answers queries, and nothing brings it into training data."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from datetime import timedelta
from pathlib import Path

import pyarrow.parquet as pq
from support.builders.reports import EPOCH_ZERO, episode, episodes
from support.homes.pipeline import curate_all, land

from simic.catalogue.query import query
from simic.contracts.field_report import FieldReport
from simic.contracts.results.receipts import SnapshotManifest
from simic.contracts.splits import Split, split_of
from simic.curation.run import why_empty
from simic.runtime.home import Home

TRAIN = [key for key in range(60) if split_of("benchmark", key) is Split.TRAIN][:3]
TEST = [key for key in range(200) if split_of("benchmark", key) is Split.TEST][:9]
POLICY = "a" * 64
TRIAL = "7" * 32


def judging(keys: Iterable[int], judgement: int | None = 3, **arguments: object) -> list[FieldReport]:
    """Episodes of a policy in a trial, later than all others."""
    marked = {"trial_id": TRIAL, "judgement": judgement}
    later = EPOCH_ZERO + timedelta(hours=1)
    rows = episodes(keys, controller="learned", policy_version=POLICY, issued_at=later, **arguments)
    return [report.model_copy(update=marked) for report in rows]


def kept(manifest: SnapshotManifest) -> dict[str, set[str]]:
    """Episodes of a snapshot by split."""
    rows = pq.read_table(Path(manifest.path) / "episodes.parquet", columns=["run_id", "split"]).to_pylist()
    return {
        split: {row["run_id"] for row in rows if row["split"] == split} for split in ("train", "validation", "test")
    }


def steps_of(manifest: SnapshotManifest) -> list[dict[str, object]]:
    return pq.read_table(Path(manifest.path) / "steps.parquet").to_pylist()


def test_a_trial_changes_no_row_of_a_snapshot_and_is_counted(tmp_path: Path) -> None:
    before, after = Home(tmp_path / "before"), Home(tmp_path / "after")
    learned = episodes(TRAIN, controller="learned", policy_version="b" * 64)
    land(before, learned)
    trial = [*judging(TEST[:2]), *judging(TRAIN[:1], judgement=None, seed=9)]
    assert land(after, [*learned, *trial]).landed == len(learned) + len(trial)
    strict = {"max_versions_behind": 0}
    expected, found = curate_all(before, **strict), curate_all(after, **strict)
    assert steps_of(found) == steps_of(expected), "a newer judged policy makes nothing stale"
    assert (expected.rejected, found.rejected) == ({}, {"judging": len(trial)})
    refused = query(after, "SELECT DISTINCT reason, message FROM rejected WHERE reason = 'judging'")
    assert "nothing learns from it" in refused[0]["message"]


def test_a_lake_of_judging_experience_alone_says_that_no_setting_helps_and_what_does(tmp_path: Path) -> None:
    home = Home(tmp_path / "home")
    land(home, judging(TEST[:2]))
    alone = why_empty(curate_all(home))
    assert alone is not None and "judging (of trials and comparisons, which judge and never train)" in alone
    assert "no setting changes that: `simic collect` and `simic ingest` bring reports" in alone
    land(home, episodes(TRAIN)[:-1])
    with_old = why_empty(curate_all(home, ttl_days=1e-9))
    assert with_old is not None and "expired" in with_old and "change the setting that a reason names" in with_old


def test_queries_find_it_by_judgement_policy_and_set(tmp_path: Path) -> None:
    home = Home(tmp_path / "home")
    land(home, [*episodes(TRAIN), *judging(TEST[:2]), *judging(TEST[:2], judgement=None, seed=9)])
    rows = query(
        home,
        'SELECT judgement, policy, "set", split, count(*) AS episodes, bool_and(is_complete) AS is_complete, '
        "any_value(role) AS role FROM judging_episodes GROUP BY ALL ORDER BY judgement NULLS LAST",
    )
    shared = {
        "policy": POLICY, "set": "benchmark", "split": "test", "episodes": 2, "is_complete": True, "role": None,
    }  # fmt: skip
    assert rows == [{"judgement": 3, **shared}, {"judgement": None, **shared}]
    assert query(home, "SELECT count(*) AS n FROM episodes WHERE trial_id IS NULL") == [{"n": len(TRAIN)}]
    marks = "SELECT DISTINCT trial_id, judgement FROM {} WHERE judgement IS NOT NULL"
    for view in ("reports", "steps", "decisions", "episodes"):
        assert query(home, marks.format(view)) == [{"trial_id": TRIAL, "judgement": 3}], view


Edit = Callable[[list[FieldReport]], list[FieldReport]]


def _unmarked(rows: list[FieldReport]) -> list[FieldReport]:
    return [report.model_copy(update={"trial_id": None, "judgement": None}) for report in rows]


def _renamed(rows: list[FieldReport]) -> list[FieldReport]:
    """Other ids, another controller, no mark: everything edited but what the host measured."""
    run = rows[0].run_id[::-1]
    edits = {"trial_id": None, "judgement": None, "run_id": run, "controller": "explore", "policy_version": None}
    return [
        report.model_copy(
            update={**edits, "report_id": report.report_id[::-1], "command_id": report.command_id[::-1]}
            | ({} if report.seed_id is None else {"seed_id": report.seed_id.replace(report.run_id, run)})
        )
        for report in rows
    ]


def _half_marked(rows: list[FieldReport]) -> list[FieldReport]:
    return [*rows[:1], *_unmarked(rows[1:])]


EDITS: list[Edit] = [_unmarked, _renamed, _half_marked]


def test_no_edit_and_no_replay_brings_it_into_training(tmp_path: Path) -> None:
    """Each edit lands before the trial on one host, after it on another, and without it on a third."""
    home, deliveries = Home(tmp_path / "home"), ([], episodes(TRAIN))
    keys, known = iter(TEST), set[str]()
    for edit in EDITS:
        for order in ("edited first", "trial first", "edited only"):
            trial = judging([next(keys)])
            pair = {"edited first": [edit(trial), trial], "trial first": [trial, edit(trial)]}.get(order, [edit(trial)])
            for delivery, rows in zip(deliveries, pair, strict=False):
                delivery += rows
            if order == "trial first" or edit is _half_marked:
                known.add(trial[0].run_id)
    for number, rows in enumerate(deliveries):
        land(home, rows, name=f"delivery-{number}")
    splits = kept(curate_all(home))
    assert splits["train"] == {episode(key)[0].run_id for key in TRAIN}
    assert splits["validation"] == set()
    assert splits["test"].isdisjoint(known), "whose mark landed is not evaluated on either"


def test_one_marked_report_keeps_its_whole_episode_out(tmp_path: Path) -> None:
    home, trial = Home(tmp_path / "home"), judging(TRAIN[:1])
    land(home, [*trial[:5], *_unmarked(trial[5:])])
    assert Counter(curate_all(home).rejected) == {"judging": len(trial)}
