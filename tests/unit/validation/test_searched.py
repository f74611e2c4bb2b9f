"""Arms that search on every host: the best of several episodes by validation, scored by test accuracy."""

from __future__ import annotations

from dataclasses import fields, replace
from datetime import UTC, datetime
from functools import cache

import numpy as np
import pytest

from simic.contracts.controllers import ControllerSpec
from simic.contracts.results.receipts import Provenance
from simic.contracts.results.trials import ControllerTrial, TrialReport
from simic.contracts.rewards import RewardConfig
from simic.contracts.settings.run import TrialConfig, WorldConfig
from simic.hosts.host_sets import identify
from simic.validation.baselines.candidates import single_seeds_of
from simic.validation.episodes import Effort, Episodes, TrialJob, run_episodes
from simic.validation.searched import grow
from simic.validation.table import render_families, render_searched, render_table
from simic.validation.trials import TrialSettings, run_trials

WORLD = WorldConfig(horizon=7, chunk=16, workers=1)
HOSTS = identify("benchmark", [2, 3, 5, 8])
"""On each of them hindsight gains over never growing, so a share of its gain has an interval."""
JOB = TrialJob("arm", ControllerSpec(name="wait"), HOSTS, WORLD, RewardConfig(), 3)


@cache
def of(name: str) -> Episodes:
    """Those of an arm, which several tests read."""
    return grow(replace(JOB, spec=ControllerSpec(name=name)))


def row(report: TrialReport, name: str) -> ControllerTrial:
    return next(one for one in report.controllers if one.controller == name)


@pytest.fixture(scope="module")
def planned() -> list[Episodes]:
    """Never growing, then every plan of one seed."""
    plans = single_seeds_of(WORLD)
    specs = [ControllerSpec(name="wait"), *(ControllerSpec(name="schedule", plan=plan) for plan in plans)]
    return [run_episodes(replace(JOB, spec=spec)) for spec in specs]


@pytest.fixture(scope="module")
def report() -> TrialReport:
    return run_trials(
        {name: ControllerSpec(name=name) for name in ("random", "simulate", "hindsight")}, HOSTS,
        TrialSettings(WORLD, TrialConfig(bootstrap_samples=200), RewardConfig()),
        provenance=Provenance("0.1.0+0", "c" * 64, 0), clock=lambda: datetime(2026, 1, 1, tzinfo=UTC),
        rent_factors=(0.0, 1.0), on_static=lambda _: None,
    )  # fmt: skip


def test_hindsight_takes_the_best_plan_of_each_host_by_validation_and_counts_them_all(planned: list[Episodes]) -> None:
    found, returns = of("hindsight"), np.stack([one.returns for one in planned])
    assert found.returns.tolist() == returns.max(axis=0).tolist()
    tested = np.stack([one.test_returns for one in planned])
    assert found.test_returns.tolist() == tested[returns.argmax(axis=0), np.arange(len(HOSTS))].tolist()
    assert (tested.max(axis=0) > found.test_returns).any(), "the test accuracy chooses nothing"
    effort = Effort(*found.effort.T)
    assert effort.episodes.tolist() == [len(planned)] * len(HOSTS)
    assert effort.decisions.tolist() == np.sum([Effort(*one.effort.T).decisions for one in planned], axis=0).tolist()


def test_returns_by_test_end_with_the_test_accuracy(planned: list[Episodes]) -> None:
    for one in planned[:5]:
        change = 100.0 * (one.test_accuracy - one.validation_accuracy)
        assert one.test_returns - one.returns == pytest.approx(change)


def test_simulation_grows_every_germination_after_the_first_epoch(planned: list[Episodes]) -> None:
    found = of("simulate")
    blueprints = len({plan.seeds[0].blueprint for plan in single_seeds_of(WORLD)})
    assert Effort(*found.effort.T).episodes.tolist() == [1 + 3 * blueprints] * len(HOSTS)
    assert (found.returns >= planned[0].returns).all(), "not to grow is one of the branches"
    assert (found.returns > planned[0].returns).any()
    assert all(len(kept) <= 1 for kept in found.kept)


@pytest.mark.parametrize("name", ["simulate", "hindsight"])
def test_neither_chunks_nor_other_hosts_change_what_is_found(name: str) -> None:
    together = of(name)
    world = WORLD.model_copy(update={"chunk": 3})
    alone = grow(replace(JOB, spec=ControllerSpec(name=name), hosts=HOSTS[2:3], world=world))
    for field in fields(together):
        column, own = getattr(together, field.name), getattr(alone, field.name)
        assert column[2:3].tolist() == own.tolist(), field.name


def test_tables_score_them_by_test_accuracy_against_waiting_scored_alike(report: TrialReport) -> None:
    wait, best = row(report, "wait"), row(report, "hindsight")
    assert (wait.scored_by, best.scored_by, best.returns) == ("validation", "test", best.test_returns)
    assert wait.returns != wait.test_returns
    assert best.over_wait is not None
    assert best.over_wait.mean == pytest.approx(np.mean(np.subtract(best.test_returns, wait.test_returns)))
    assert best.over_wait == best.by_test == best.by_rent[1].over_wait
    assert (best.static, len(row(report, "random").static)) == ([], 2)
    cells = {one[0]: one for one in render_table(report).rows}
    assert all(cell.endswith("*") for cell in cells["hindsight"][1:-2])
    assert not any("*" in cell for name in ("wait", "random") for cell in cells[name])
    assert {one[1] for one in render_families(report).rows if one[3].endswith("*")} == {"simulate", "hindsight"}


def test_the_share_of_hindsight_is_that_of_gains_over_waiting_where_blind_takes_no_part(report: TrialReport) -> None:
    shares = {name: row(report, name).share_of_hindsight for name in ("random", "hindsight")}
    gains = {
        name: np.mean(np.subtract(row(report, name).test_returns, row(report, "wait").test_returns)) for name in shares
    }
    assert shares["random"] is not None
    assert shares["random"].mean == pytest.approx(gains["random"] / gains["hindsight"])
    rendered = {one[0]: one for one in render_searched(report).rows}
    assert rendered["hindsight"][1] == str(1 + len(single_seeds_of(WORLD)))
    assert rendered["wait"][1:3] == ("1", "-")
