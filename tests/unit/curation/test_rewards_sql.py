"""The SQL's rewards against a literal oracle, and the laws they obey."""

from __future__ import annotations

from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from support.builders.reports import episode, episodes, varied_episode
from support.builders.snapshots import told_rows
from support.homes.pipeline import curate_all, land

from simic.contracts.errors import ContractError
from simic.contracts.field_report import FieldReport
from simic.contracts.rewards import RewardConfig
from simic.numerics.rewards import basic_rewards
from simic.runtime.home import Home
from simic.snapshots.manifest import Verify, read_manifest
from simic.snapshots.schema import STEP_COLUMNS

REWARD = {"accuracy_scale": 80.0, "rent": 2.5, "rent_parameters": 1111, "governor_penalty": 7.0}
GAMMA = 0.93


@pytest.fixture(scope="module")
def told() -> dict[str, list[FieldReport]]:
    return {reports[0].run_id: reports for reports in (varied_episode(key, 6) for key in range(40))}


@pytest.fixture(scope="module")
def snapshot(told: dict[str, list[FieldReport]], tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = Home(tmp_path_factory.mktemp("home"))
    shuffled = [report for reports in told.values() for report in reports]
    np.random.default_rng(0).shuffle(shuffled)  # type: ignore[arg-type]
    land(home, shuffled, batch_reports=100)
    return Path(curate_all(home, reward=RewardConfig(**REWARD), gamma=GAMMA).path)


@pytest.fixture(scope="module")
def steps(snapshot: Path) -> dict[str, list[dict[str, Any]]]:
    runs: dict[str, list[dict[str, Any]]] = {}
    for row in pq.read_table(snapshot / "steps.parquet").to_pylist():
        runs.setdefault(row["run_id"], []).append(row)
    return runs


def oracle(report: FieldReport) -> tuple[float, float, float]:
    """The definition, term by term."""
    metrics = report.metrics
    progress = REWARD["accuracy_scale"] * (metrics.validation_accuracy_after - metrics.validation_accuracy_before)
    rent = REWARD["rent"] * metrics.rent_parameters / REWARD["rent_parameters"] / 20
    return progress, -rent, -REWARD["governor_penalty"] if report.governor else 0.0


def test_every_term_equals_the_literal_definition(
    told: dict[str, list[FieldReport]], steps: dict[str, list[dict[str, Any]]]
) -> None:
    assert set(steps) == set(told)
    for run, rows in steps.items():
        expected = [oracle(report) for report in told[run]]
        found = [(row["reward_progress"], row["reward_rent"], row["reward_penalty"]) for row in rows]
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-9)
        np.testing.assert_allclose([row["reward"] for row in rows], np.sum(expected, axis=1), rtol=0, atol=1e-9)


def test_equals_the_twin_that_trials_use(
    told: dict[str, list[FieldReport]], steps: dict[str, list[dict[str, Any]]]
) -> None:
    for run, rows in steps.items():
        metrics = [report.metrics for report in told[run]]
        twin = basic_rewards(
            RewardConfig(**REWARD),
            horizon=20,
            accuracy_before=[m.validation_accuracy_before for m in metrics],
            accuracy_after=[m.validation_accuracy_after for m in metrics],
            rent_parameters=[m.rent_parameters for m in metrics],
            governor=[report.governor is not None for report in told[run]],
        )
        np.testing.assert_allclose([row["reward"] for row in rows], twin, rtol=0, atol=1e-9)


def test_terms_account_for_the_total_and_keep_their_ranges(steps: dict[str, list[dict[str, Any]]]) -> None:
    """L20."""
    for rows in steps.values():
        for row in rows:
            total = row["reward_progress"] + row["reward_rent"] + row["reward_penalty"]
            assert abs(total - row["reward"]) <= 1e-9
            assert abs(row["reward_progress"]) <= REWARD["accuracy_scale"]
            assert row["reward_rent"] <= 0
            assert row["reward_penalty"] in (0.0, -REWARD["governor_penalty"])


def test_progress_telescopes_to_final_minus_initial(
    told: dict[str, list[FieldReport]], steps: dict[str, list[dict[str, Any]]]
) -> None:
    """H8, L10: the whole way counts, not the last epoch."""
    for run, rows in steps.items():
        first, last = told[run][0].metrics, told[run][-1].metrics
        gained = last.validation_accuracy_after - first.validation_accuracy_before
        assert sum(row["reward_progress"] for row in rows) == pytest.approx(REWARD["accuracy_scale"] * gained, abs=1e-9)


def test_return_to_go_is_the_discounted_sum_with_the_snapshots_gamma(steps: dict[str, list[dict[str, Any]]]) -> None:
    """C1, D26."""
    for rows in steps.values():
        rewards = np.array([row["reward"] for row in rows])
        for t, row in enumerate(rows):
            expected = float(np.sum(rewards[t:] * GAMMA ** np.arange(len(rewards) - t)))
            assert row["return_to_go"] == pytest.approx(expected, abs=1e-9)


def test_episode_rows_sum_up_their_steps(snapshot: Path, steps: dict[str, list[dict[str, Any]]]) -> None:
    rows = pq.read_table(snapshot / "episodes.parquet").to_pylist()
    assert [row["run_id"] for row in rows] == sorted(steps)
    for row in rows:
        own = steps[row["run_id"]]
        assert row["steps"] == len(own)
        assert row["episode_return"] == pytest.approx(sum(step["reward"] for step in own), abs=1e-9)
        assert row["discounted_return"] == own[0]["return_to_go"]
        assert row["germinated"] == sum(step["op"] == "GERMINATE" for step in own)
        assert (row["has_governor"], row["truncated"]) == (own[-1]["has_governor"], own[-1]["truncated"])
        assert row["accuracy_after"] == own[-1]["accuracy_after"]
        assert row["test_accuracy"] == own[-1]["test_accuracy"]


def test_nested_columns_are_those_that_were_told(told: dict[str, list[FieldReport]], snapshot: Path) -> None:
    nested = ("state", "final_state", "available", "action", "relevant", "log_prob_behaviour", "outcome")
    for run, group in groupby(told_rows(read_manifest(snapshot, Verify.NONE), *nested), key=lambda row: row["run_id"]):
        rows = list(group)
        assert [row["step"] for row in rows] == list(range(len(rows)))
        for row, report in zip(rows, told[run], strict=True):
            plain = report.model_dump(mode="json")
            for name in nested:
                assert row[name] == plain[name]
            assert (row["terminated"], row["truncated"]) == (report.terminated, report.truncated)
            assert (row["set"], row["family"], row["host_key"]) == tuple(plain["host"].values())


def test_features_do_not_depend_on_rewards(tmp_path: Path) -> None:
    """D26: another price list changes reward columns and nothing else."""
    reward_columns = {
        name for name in STEP_COLUMNS if name.startswith("reward") or name in ("potential", "return_to_go")
    }
    home = Home(tmp_path)
    land(home, episodes(range(5)))
    tables = [
        pq.read_table(Path(curate_all(home, reward=RewardConfig(accuracy_scale=scale)).path) / "steps.parquet")
        for scale in (1.0, 50.0)
    ]
    first, second = (table.drop_columns(list(reward_columns)) for table in tables)
    assert first.equals(second)
    assert not tables[0].equals(tables[1])


def test_a_broken_promise_stops_the_stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from simic.curation import run

    home = Home(tmp_path)
    land(home, episode(1))
    statements = run.load_statements("basic")
    spoiled = [
        item._replace(sql=item.sql.replace("reward_progress + reward_rent +", "reward_progress +"))
        if item.name == "family_terms"
        else item
        for item in statements
    ]
    monkeypatch.setattr(run, "load_statements", lambda _: spoiled)
    with pytest.raises(
        ContractError,
        match=r"terms_add_up \([0-9a-f]{32}, step \d+\): expected the sum -?[\d.e-]+, found -?[\d.e-]+",
    ):
        curate_all(home)
    assert not list(home.snapshots.glob("*"))
