"""Every reward family's SQL against its definition, written out step by step over whole field reports."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from support.builders.reports import varied_episode
from support.homes.pipeline import curate_all, land

from simic.contracts.field_report import FieldReport
from simic.contracts.lifecycle import SeedStage
from simic.contracts.rewards import FAMILIES, RewardConfig
from simic.contracts.state import SystemState
from simic.runtime.home import Home

GAMMA = 0.93
PRICES: dict[str, Any] = {"accuracy_scale": 80.0, "rent": 2.5, "rent_parameters": 1111, "governor_penalty": 7.0}
REWARDS = {
    "basic": RewardConfig(**PRICES),
    "shaped": FAMILIES["shaped"](**PRICES, potential=2.5, contribution_full=0.03),
    "sparse": FAMILIES["sparse"](**PRICES),
    "minimal": FAMILIES["minimal"](**PRICES, germination_cost=0.3, prune_cost=0.7),
}
TERMS = ("reward_progress", "reward_rent", "reward_penalty", "reward_shaping", "reward_effort")
Terms = list[dict[str, float]]


def progress_of(reward: Any, report: FieldReport) -> float:
    metrics = report.metrics
    return reward.accuracy_scale * (metrics.validation_accuracy_after - metrics.validation_accuracy_before)


def rent_of(reward: Any, report: FieldReport) -> float:
    return -reward.rent * report.metrics.rent_parameters / reward.rent_parameters / report.state.horizon


def penalty_of(reward: Any, report: FieldReport) -> float:
    return -reward.governor_penalty if report.governor is not None else 0.0


def potential_of(reward: Any, state: SystemState) -> float:
    """Minus the points that are still to be had: what lacks to every seed fossilised and fully contributing."""
    by_stage = {
        SeedStage.GERMINATED: 0.1,
        SeedStage.TRAINING: 0.3,
        SeedStage.BLENDING: 0.5,
        SeedStage.HOLDING: 0.7,
        SeedStage.FOSSILIZED: 0.9,
    }
    grown = 0.0
    for slot in state.slots:
        if slot.stage not in by_stage:
            continue
        grown += by_stage[slot.stage]
        if slot.contribution is not None:
            grown += 0.1 * max(-1.0, min(1.0, slot.contribution / reward.contribution_full))
    return -reward.potential * (1.0 - min(1.0, grown / state.seeds_max))


def basic(reward: Any, told: Sequence[FieldReport]) -> Terms:
    return [
        {
            "reward_progress": progress_of(reward, report),
            "reward_rent": rent_of(reward, report),
            "reward_penalty": penalty_of(reward, report),
        }
        for report in told
    ]


def shaped(reward: Any, told: Sequence[FieldReport]) -> Terms:
    terms = basic(reward, told)
    for number, report in enumerate(told):
        following = report.final_state or told[number + 1].state
        then = 0.0 if report.terminated else potential_of(reward, following)
        terms[number]["reward_shaping"] = GAMMA * then - potential_of(reward, report.state)
    return terms


def sparse(reward: Any, told: Sequence[FieldReport]) -> Terms:
    terms = [{"reward_progress": 0.0, "reward_rent": 0.0, "reward_penalty": 0.0} for _ in told]
    start, end = told[0].metrics.validation_accuracy_before, told[-1].metrics.validation_accuracy_after
    terms[-1] = {
        "reward_progress": reward.accuracy_scale * (end - start),
        "reward_rent": sum(rent_of(reward, report) for report in told),
        "reward_penalty": penalty_of(reward, told[-1]),
    }
    return terms


def minimal(reward: Any, told: Sequence[FieldReport]) -> Terms:
    prices = {"GERMINATE": -reward.germination_cost, "PRUNE": -reward.prune_cost}
    effort = [{"reward_effort": prices.get(report.action.op.value, 0.0)} for report in told]
    return [{**terms, **extra} for terms, extra in zip(sparse(reward, told), effort, strict=True)]


ORACLES: dict[str, Callable[[Any, Sequence[FieldReport]], Terms]] = {
    "basic": basic,
    "shaped": shaped,
    "sparse": sparse,
    "minimal": minimal,
}


@pytest.fixture(scope="module")
def told() -> dict[str, list[FieldReport]]:
    return {reports[0].run_id: reports for reports in (varied_episode(key, 9) for key in range(30))}


@pytest.fixture(scope="module")
def home(told: dict[str, list[FieldReport]], tmp_path_factory: pytest.TempPathFactory) -> Home:
    home = Home(tmp_path_factory.mktemp("home"))
    land(home, [report for reports in told.values() for report in reports])
    return home


@pytest.fixture(scope="module", params=sorted(REWARDS))
def family(request: pytest.FixtureRequest, home: Home) -> tuple[str, Path]:
    manifest = curate_all(home, reward=REWARDS[request.param], gamma=GAMMA)
    assert manifest.reward_family == request.param
    return request.param, Path(manifest.path)


def test_every_family_has_its_oracle() -> None:
    assert set(ORACLES) == set(REWARDS) == set(FAMILIES)


def test_sql_is_the_definition(family: tuple[str, Path], told: dict[str, list[FieldReport]]) -> None:
    """L20, H8, L10: terms of every step to 1e-9, absent terms null, and the total their sum."""
    name, snapshot = family
    found: dict[str, list[dict[str, Any]]] = {}
    for row in pq.read_table(snapshot / "steps.parquet").to_pylist():
        found.setdefault(row["run_id"], []).append(row)
    assert set(found) == set(told)
    for run, rows in found.items():
        for row, expected in zip(rows, ORACLES[name](REWARDS[name], told[run]), strict=True):
            assert {term for term in TERMS if row[term] is not None} == set(expected)
            for term, value in expected.items():
                assert row[term] == pytest.approx(value, rel=0, abs=1e-9), (run, row["step"], term)
            assert row["reward"] == pytest.approx(sum(expected.values()), rel=0, abs=1e-9)


def test_returns_discount_the_family_in_use(family: tuple[str, Path]) -> None:
    steps = pq.read_table(family[1] / "steps.parquet", columns=["run_id", "reward", "return_to_go"]).to_pylist()
    to_go, run = 0.0, None
    for row in reversed(steps):
        to_go = row["reward"] + (GAMMA * to_go if row["run_id"] == run else 0.0)
        run = row["run_id"]
        assert row["return_to_go"] == pytest.approx(to_go, rel=0, abs=1e-9)


def test_episodes_sum_up_their_terms(family: tuple[str, Path]) -> None:
    steps = pq.read_table(family[1] / "steps.parquet").to_pylist()
    for row in pq.read_table(family[1] / "episodes.parquet").to_pylist():
        own = [step for step in steps if step["run_id"] == row["run_id"]]
        for term in (*TERMS, "reward"):
            total = row["episode_return" if term == "reward" else term]
            if own[0][term] is None:
                assert total is None
            else:
                assert total == pytest.approx(np.sum([step[term] for step in own]), rel=0, abs=1e-9)


def test_families_agree_on_what_an_episode_is_worth(home: Home, told: dict[str, list[FieldReport]]) -> None:
    """Undiscounted, sparse is basic; discounted, shaped is basic minus the potential of the first state (H8)."""
    worth = {
        name: {
            row["run_id"]: row
            for row in pq.read_table(
                Path(curate_all(home, reward=REWARDS[name], gamma=GAMMA).path) / "episodes.parquet"
            ).to_pylist()
        }
        for name in ("basic", "sparse", "shaped")
    }
    for run, row in worth["basic"].items():
        assert worth["sparse"][run]["episode_return"] == pytest.approx(row["episode_return"], rel=0, abs=1e-9)
        if told[run][-1].terminated:
            first = potential_of(REWARDS["shaped"], told[run][0].state)  # type: ignore[arg-type]
            gained = worth["shaped"][run]["discounted_return"] - row["discounted_return"]
            assert gained == pytest.approx(-first, rel=0, abs=1e-9)
