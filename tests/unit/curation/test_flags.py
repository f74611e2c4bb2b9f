"""Flags of rewards gamed and hosts held to ransom: on every row whose contribution was measured, null elsewhere."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from support.builders.reports import episode, plain
from support.homes.pipeline import curate_all, drop, ingest_all

from simic.contracts.rewards import FAMILIES
from simic.runtime.home import Home

SCRIPT = {0: "GERMINATE", 1: "ADVANCE"}
"""HOLDING from step 2 on."""


def steps_of(tmp_path: Path, accuracies: list[float], contribution: float | None, family: str = "basic") -> Any:
    rows = [plain(report) for report in episode(1, horizon=len(accuracies) - 1, script=SCRIPT, accuracies=accuracies)]
    for row in rows:
        for state in (row["state"], row["final_state"]):
            if state is not None and state["slots"][0]["stage"] == "HOLDING":
                state["slots"][0]["contribution"] = contribution
    drop(Home(tmp_path), "rows", rows)
    ingest_all(Home(tmp_path))
    manifest = curate_all(Home(tmp_path), horizon=len(rows), reward=FAMILIES[family]())
    (told,) = pq.read_table(Path(manifest.path) / "episodes.parquet").to_pylist()
    return pq.read_table(Path(manifest.path) / "steps.parquet").to_pylist(), told


@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_a_claim_of_more_than_five_times_the_improvement_is_hacking(tmp_path: Path, family: str) -> None:
    """H9."""
    steps, told = steps_of(tmp_path, [0.5, 0.5, 0.52, 0.505, 0.51, 0.5], 0.06, family)
    assert [row["contribution"] for row in steps] == [None, 0.06, 0.06, 0.06, 0.06]
    # Improvements after the steps: 0, .02 (3 times), .005 (12 times), .01 (6 times), 0 (no ratio).
    assert [row["is_hacking"] for row in steps] == [None, False, True, True, False]
    assert [row["is_ransomware"] for row in steps] == [None, False, False, False, False]
    assert (told["hacking_steps"], told["ransomware_steps"]) == (2, 0)


def test_a_contribution_to_a_host_that_has_fallen_is_ransomware(tmp_path: Path) -> None:
    """H9."""
    steps, told = steps_of(tmp_path, [0.7, 0.6, 0.55, 0.45, 0.48, 0.1], 0.3)
    assert [row["is_ransomware"] for row in steps] == [None, False, True, True, True]
    assert [row["is_hacking"] for row in steps] == [None, False, False, False, False]
    assert (told["hacking_steps"], told["ransomware_steps"]) == (0, 3)


def test_unmeasured_is_neither_true_nor_false_and_counts_of_nothing_are_zero(tmp_path: Path) -> None:
    """H9."""
    steps, told = steps_of(tmp_path, [0.7, 0.6, 0.55, 0.45, 0.48, 0.1], None)
    assert {(row["contribution"], row["is_hacking"], row["is_ransomware"]) for row in steps} == {(None, None, None)}
    assert (told["hacking_steps"], told["ransomware_steps"]) == (0, 0)


def test_a_small_contribution_holds_nobody_to_ransom(tmp_path: Path) -> None:
    steps, _ = steps_of(tmp_path, [0.9, 0.6, 0.55, 0.45, 0.48, 0.1], 0.1)
    assert not any(row["is_ransomware"] for row in steps)
