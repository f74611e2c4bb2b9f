"""docs/queries.md: every block runs, answers with the columns it names, and says what is true of a known home."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from support.builders.reports import episode, episodes, plain
from support.homes.lineage import FIRST, REJECTED, SECOND, judge, make_history, shelve_training
from support.homes.pipeline import curate_all, drop, ingest_all, land

from simic.catalogue.query import query
from simic.contracts.rewards import FAMILIES
from simic.runtime.home import Home

TEXT = (Path(__file__).parents[3] / "docs" / "queries.md").read_text("utf-8")
QUERIES = dict(re.findall(r"^## (.+?)\n.*?^```sql\n(.*?)^```", TEXT, re.MULTILINE | re.DOTALL))
COLUMNS = {
    "From the champion back to the rows it learned from": (
        "policy trainings_ago snapshot reward_family run_id step report_id controller landed_at op reward return_to_go"
    ),
    "The champion, and why": ("semantic_version policy champion_since criterion value comparison bound evidence"),
    "Rejected policies, and why": "number policy finished_at criterion verdict value comparison bound",
    "Experience of every policy": "policy finished_at snapshot controller acting_policy episodes steps",
    "Age of the acting policies": "learner controller acting_policy trainings_behind steps",
    "Returns by family and controller": "family controller episodes mean_return deviation worst best",
    "Which action was best at each branched decision, and by how much?": (
        "family host_key parent branch_step actions op slot blueprint points over_next over_controller"
    ),
    "Rewards of the best and the worst episodes": (
        "place run_id family controller progress rent penalty other_terms episode_return"
    ),
    "Interventions of the governor": (
        "run_id step family host_key controller policy_version governor op blueprint accuracy_before accuracy_after"
    ),
    "Refused reports, and why": "reason lines deliveries first_seen_at last_seen_at for_example",
    "Rows left out of snapshots": "finished_at snapshot reason landed_rows episodes per_cent_of_landed",
    "Decisions and gains per blueprint": "blueprint op outcome decisions mean_gain mean_rent_parameters",
    "One host under every controller": (
        "set host_key family controller policy_version run_id ending germinated fossilized pruned "
        "accuracy_after committed_parameters"
    ),
    "Rows that two snapshots share": "split only_in_older only_in_newest in_both",
    "What keeps a snapshot": "snapshot finished_at rows_out is_pinned champions trainings",
}
LINEAGE = "From the champion back to the rows it learned from"


@pytest.fixture(scope="module")
def history(tmp_path_factory: pytest.TempPathFactory) -> tuple[Home, list[str]]:
    """A home and the digests of its snapshots, oldest first."""
    home = Home(tmp_path_factory.mktemp("history"))
    return home, [manifest.digest for manifest in make_history(home)]


def asked(title: str, history: tuple[Home, list[str]]) -> list[dict[str, Any]]:
    return query(history[0], QUERIES[title])


def test_one_query_per_question_and_more_than_ten() -> None:
    assert QUERIES.keys() == COLUMNS.keys()
    assert len(QUERIES) == TEXT.count("```sql") == TEXT.count("\n## ") > 11


@pytest.mark.parametrize("title", QUERIES)
def test_each_answers_where_there_is_something_to_say_and_nowhere_else(
    title: str, history: tuple[Home, list[str]], tmp_path: Path
) -> None:
    rows = asked(title, history)
    assert rows
    assert list(rows[0]) == COLUMNS[title].split()
    assert query(Home(tmp_path / "empty"), QUERIES[title]) == []


def test_the_champion_leads_to_the_very_rows_of_all_its_trainings(history: tuple[Home, list[str]]) -> None:
    """`policies` to `trainings` to `snapshots` to `reports`: every train row, once per training, no other row."""
    home, (first, second, third) = history
    rows = asked(LINEAGE, history)
    assert {(row["policy"], row["trainings_ago"], row["snapshot"]) for row in rows} == {
        (SECOND, 0, second),
        (FIRST, 1, first),
    }
    for policy, snapshot in ((SECOND, second), (FIRST, first)):
        found = {(row["run_id"], row["step"]) for row in rows if row["policy"] == policy}
        sql = f"SELECT run_id, step FROM rewards WHERE snapshot = '{snapshot}' AND split = 'train'"  # noqa: S608
        held = query(home, sql)
        assert found == {(row["run_id"], row["step"]) for row in held} and held
    landed = {row["report_id"] for row in query(home, "SELECT report_id FROM reports")}
    assert {row["report_id"] for row in rows} <= landed
    assert third not in {row["snapshot"] for row in rows}
    assert REJECTED not in {row["policy"] for row in rows}


def test_a_step_told_again_under_another_id_counts_once(tmp_path: Path) -> None:
    home = Home(tmp_path)
    told = episodes(range(4))
    land(home, told)
    retold = [{**plain(report), "report_id": f"{number:032x}"} for number, report in enumerate(told)]
    drop(home, "retold", retold)
    assert ingest_all(home).landed == len(told)
    manifest = curate_all(home)
    assert manifest.rejected == {"same_content": len(told)}
    shelve_training(home, FIRST, manifest, None, hour=1)
    judge(home, FIRST, manifest, number=1, accepted=True, hour=2)
    train = query(home, "SELECT report_id FROM rewards WHERE split = 'train' ORDER BY ALL")
    lineage = query(home, QUERIES[LINEAGE])
    assert sorted(row["report_id"] for row in lineage) == [row["report_id"] for row in train] != []
    for title in ("Experience of every policy", "Age of the acting policies"):
        assert sum(row["steps"] for row in query(home, QUERIES[title])) == len(train)
    found = query(home, "SELECT steps, is_complete FROM episodes")
    assert found == [{"steps": 20, "is_complete": True}] * 4
    keys = "SELECT count(*) AS n, count(DISTINCT report_id) AS keys FROM steps"
    assert query(home, keys) == [{"n": 2 * len(told), "keys": 2 * len(told)}]


def test_the_last_line_of_the_ledger_is_live_whatever_the_clock_said(tmp_path: Path) -> None:
    home = Home(tmp_path)
    land(home, episodes(range(2)))
    manifest = curate_all(home)
    judge(home, FIRST, manifest, number=1, accepted=True, hour=5)
    judge(home, SECOND, manifest, number=2, accepted=True, hour=2)
    assert query(home, "SELECT policy FROM policies WHERE is_live") == [{"policy": SECOND}]


def test_a_rejection_is_listed_with_what_failed(history: tuple[Home, list[str]]) -> None:
    (row,) = asked("Rejected policies, and why", history)
    assert (row["number"], row["policy"], row["criterion"], row["verdict"]) == (2, REJECTED, "return_over_wait", "FAIL")
    listed = query(history[0], "SELECT policy, accepted FROM policies ORDER BY number")
    assert [(row["policy"], row["accepted"]) for row in listed] == [(SECOND, True), (REJECTED, False)]
    live = asked("The champion, and why", history)
    assert {row["policy"] for row in live} == {SECOND}
    assert [row["criterion"] for row in live] == ["episodes", "return_over_wait"]


def test_staleness_counts_trainings_between_acting_and_learning(history: tuple[Home, list[str]]) -> None:
    rows = asked("Age of the acting policies", history)
    found = {(row["learner"], row["acting_policy"], row["trainings_behind"]) for row in rows}
    assert found == {
        (FIRST, None, None),
        (SECOND, None, None),
        (SECOND, FIRST, 1),
        (REJECTED, None, None),
        (REJECTED, FIRST, 2),
        (REJECTED, SECOND, 1),
    }


def test_shared_rows_are_counted_per_split(history: tuple[Home, list[str]]) -> None:
    home, (_, second, third) = history
    rows = asked("Rows that two snapshots share", history)
    counts = {
        row["snapshot"]: row["rows_out"] for row in query(home, "SELECT snapshot, rows_out FROM snapshots")
    }  # fmt: skip
    assert sum(row["only_in_older"] for row in rows) == 0
    assert sum(row["in_both"] for row in rows) == counts[second]
    assert sum(row["only_in_newest"] for row in rows) == counts[third] - counts[second]


def test_the_host_that_met_most_controllers_is_shown_under_each(history: tuple[Home, list[str]]) -> None:
    rows = asked("One host under every controller", history)
    assert len({row["host_key"] for row in rows}) == 1
    assert {row["policy_version"] for row in rows} == {None, FIRST, SECOND}


def test_panics_refusals_and_what_was_left_out(history: tuple[Home, list[str]]) -> None:
    (panic,) = asked("Interventions of the governor", history)
    assert (panic["host_key"], panic["step"], panic["governor"]) == (30, 4, "NON_FINITE")
    refused = {row["reason"]: row["lines"] for row in asked("Refused reports, and why", history)}
    assert refused == {"duplicate": 1, "malformed_json": 1}
    left_out = asked("Rows left out of snapshots", history)
    assert [(row["reason"], row["landed_rows"], row["episodes"]) for row in left_out] == [("unfinished", 5, 1)] * 3


def test_the_best_action_leads_by_the_returns_from_the_branched_decision_on(tmp_path: Path) -> None:
    """Points are 100 times the accuracy gained, without rent: 10 for the parent, 30 and 5 for its branches."""
    home, step = Home(tmp_path), 10
    parent = episode(0, script={}, accuracies=_gain(0.1, step))
    best, worst = (
        episode(0, script={}, accuracies=_gain(gain, step), branch_of=parent[0].run_id, branch_step=step, seed=seed)
        for gain, seed in ((0.3, 1), (0.05, 2))
    )
    orphan = episode(5, script={}, accuracies=_gain(0.2, step), branch_of="a" * 32, branch_step=step)
    land(home, [*parent, *best, *worst, *orphan])
    curate_all(home, reward=FAMILIES["basic"]())
    first, second = query(home, QUERIES["Which action was best at each branched decision, and by how much?"])
    assert (first["host_key"], first["parent"], first["branch_step"], first["actions"]) == (
        0,
        parent[0].run_id,
        step,
        3,
    )
    assert [first[name] for name in ("points", "over_next", "over_controller")] == pytest.approx([30, 20, 20], abs=0.01)
    assert (second["host_key"], second["actions"], second["over_next"], second["over_controller"]) == (5, 1, None, None)


def _gain(gain: float, step: int) -> list[float]:
    """Accuracies of an episode of 20 steps that rises before ``step``, and by ``gain`` at its end."""
    return [0.3] * step + [0.4] * (20 - step) + [0.4 + gain]


def test_best_and_worst_terms_add_up(history: tuple[Home, list[str]]) -> None:
    rows = asked("Rewards of the best and the worst episodes", history)
    assert len(rows) == 10
    assert [row["episode_return"] for row in rows] == sorted((row["episode_return"] for row in rows), reverse=True)
    for row in rows:
        assert row["progress"] + row["rent"] + row["penalty"] + row["other_terms"] == pytest.approx(
            row["episode_return"]
        )
