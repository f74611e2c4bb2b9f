"""A run that learns from branches, through every stage, as its user sees it afterwards."""

from __future__ import annotations

import json
import os
import subprocess
from collections import Counter
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest
from support.builders.profiles import write_tiny_profile
from support.servers.forked_commands import run_command

from simic.contracts.results.run import RunReceipt
from simic.contracts.results.trials import TrialReport
from simic.contracts.splits import Split, split_of
from simic.controllers.policy_files import load_policy


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The home of a run; what the command printed is in ``printed.txt`` beside it."""
    root = tmp_path_factory.mktemp("distilled")
    profile = write_tiny_profile(
        root / "tiny.toml", start="distil", horizon=6, min_experiences=20, also_sets=("benchmark", "varied"),
        further_set="varied",
    )  # fmt: skip
    done = _simic(root / "home", "run", "--profile", str(profile))
    assert done.returncode in (0, 3), done.stderr
    assert "V-trace" not in done.stderr
    assert "trials on varied" in done.stderr
    (root / "printed.txt").write_text(done.stdout)
    return root / "home"


def _simic(home: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return run_command(*arguments, env={**os.environ, "SIMIC_HOME": str(home)}, cwd=home.parent)


def _rows(home: Path, query: str) -> list[dict[str, Any]]:
    done = _simic(home, "sql", query, "--json")
    assert done.returncode == 0, done.stderr
    return list(json.loads(done.stdout))


def test_every_branch_landed_beside_its_parent(home: Path) -> None:
    receipts = [json.loads(path.read_text()) for path in (home / "data" / "receipts" / "collect").glob("*.json")]
    assert {(one["controller"], one["set"]): one["episodes"] for one in receipts} == {
        ("complete", "benchmark"): 4, ("complete", "varied"): 4, ("learned", "benchmark"): 2, ("learned", "varied"): 2,
    }  # fmt: skip
    assert len(receipts) == 4
    (found,) = _rows(
        home,
        "SELECT count(*) AS branches, count(parent.run_id) AS parents, count_if(branch.host_key = parent.host_key) AS "
        "same_host FROM episodes AS branch LEFT JOIN episodes AS parent ON parent.run_id = branch.branch_of "
        "WHERE branch.branch_of IS NOT NULL",
    )
    assert found["branches"] == sum(receipt["branches"] for receipt in receipts) > 0
    assert found["parents"] == found["same_host"] == found["branches"]


def test_the_policy_learned_from_both_sets_and_its_card_says_so(home: Path) -> None:
    (receipt,) = (home / "data" / "receipts" / "run").glob("*.json")
    last = RunReceipt.model_validate_json(receipt.read_bytes()).trainings[-1]
    assert load_policy(home / "data" / "policies" / last.digest).card.set == "benchmark+varied"
    learned = _rows(home, 'SELECT DISTINCT "set" FROM episodes WHERE branch_of IS NOT NULL ORDER BY 1')
    assert [row["set"] for row in learned] == ["benchmark", "varied"]


def test_the_training_receipts_say_what_was_learned_from(home: Path) -> None:
    receipts = [json.loads(path.read_text()) for path in (home / "data" / "receipts" / "train").glob("*.json")]
    assert len(receipts) == 2
    for receipt in receipts:
        assert {"expected_regret", "greedy_regret", "commit_rate"} <= set(receipt["metrics"])
        assert "held_out_regret" not in receipt["metrics"], "of so few hosts too few are held out"
        assert "mean_ratio" not in receipt["metrics"]
        assert receipt["episodes"] > 0


def test_the_gate_judged_a_distilled_policy_without_importance_ratios(home: Path) -> None:
    (path,) = (home / "data" / "receipts" / "gate").glob("*.json")
    names = {line["name"] for line in json.loads(path.read_text())["criteria"]}
    assert "mean_ratio" not in names
    assert {"commit_rate", "return_over_wait"} <= names


def test_the_candidate_was_tried_on_a_further_set_and_the_gate_read_it(home: Path) -> None:
    (path,) = (home / "data" / "receipts" / "run").glob("*.json")
    receipt = RunReceipt.model_validate_json(path.read_bytes())
    (report,) = receipt.validation.further
    (saved,) = (home / "data" / "receipts" / "trials").glob("*.json")
    record = json.loads(saved.read_bytes())
    assert {"key_id", "signature"} <= set(record), "sealed, because the gate reads it"
    assert {name: record[name] for name in TrialReport.model_fields} == report.model_dump(mode="json")
    assert report.set == "varied", "the run's own set is no further one"
    (line,) = [line for line in receipt.decision.criteria if line.name == "mean_over_wait_on_varied"]
    assert line.value is not None
    assert report.policy_digest == receipt.decision.policy_digest
    assert {split_of("varied", key) for key in report.host_keys} == {Split.TEST}
    assert sorted(Counter(report.families).values()) == [2] * 10
    rows = {row.controller: row for row in report.controllers}
    assert list(rows) == ["wait", "heuristic", "blind", "symptom", "oracle", "candidate"]
    ours, waited = rows["candidate"], rows["wait"]
    gains = [own - other for own, other in zip(ours.returns, waited.returns, strict=True)]
    assert ours.over_wait is not None
    assert ours.over_wait.mean == pytest.approx(fmean(gains)), "paired by host"


def test_the_figures_of_a_further_set_are_printed_and_found_by_sql(home: Path) -> None:
    (row,) = _rows(home, "FROM trials WHERE stage = 'trials' AND controller = 'candidate' AND family IS NULL")
    assert (row["set"], row["episodes"]) == ("varied", 20)
    (judged,) = _rows(home, "SELECT DISTINCT policy FROM trials WHERE stage = 'validate'")
    assert row["policy"] == judged["policy"]
    printed = " ".join((home.parent / "printed.txt").read_text().split())
    assert f"candidate on varied, 20 held-out hosts: {row['over_wait']:+.1f} [" in printed
    assert printed.index("Gate: ") < printed.index("Further set: ")
    assert f"`simic --home {home} sql 'FROM policies'`" in printed, "nobody stands in this home"
