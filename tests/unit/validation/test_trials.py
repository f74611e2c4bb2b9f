"""Closed-loop trials: paired by host, whoever is tried with whom."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from simic.contracts.actions import Op
from simic.contracts.batches import OP_INDEX, Decisions, Masks, Observations
from simic.contracts.controllers import ControllerSpec, Plan, PlannedSeed
from simic.contracts.errors import ConfigError, IllegalActionError
from simic.contracts.results.receipts import Provenance
from simic.contracts.results.trials import ControllerTrial, TrialReport
from simic.contracts.rewards import RewardConfig
from simic.contracts.settings.run import TrialConfig, WorldConfig
from simic.controllers.plugins.wait import WaitController
from simic.hosts.host_sets import identify
from simic.validation.baselines.static_network import grow_rivals
from simic.validation.episodes import TrialJob, run_episodes
from simic.validation.host_sizes import host_sizes
from simic.validation.table import render_rents, render_static
from simic.validation.trials import TrialSettings, render_families, render_table, run_trials

WORLD = WorldConfig(horizon=6, chunk=4, workers=1)
CONFIG = TrialConfig(bootstrap_samples=400)
KEYS = list(range(10))
SPECS = {
    "random": ControllerSpec(name="random"),
    "gates": ControllerSpec(
        name="schedule", plan=Plan(seeds=[PlannedSeed(epoch=0, slot=1, blueprint="gate", alpha_speed=0)])
    ),
}


def run(
    specs: dict[str, ControllerSpec] = SPECS,
    world: WorldConfig = WORLD,
    keys: list[int] = KEYS,
    rent_factors: tuple[float, ...] = (),
    on_static: Callable[[int], None] | None = None,
) -> TrialReport:
    return run_trials(
        specs, identify("benchmark", keys), TrialSettings(world, CONFIG, RewardConfig()),
        provenance=Provenance("0.1.0+0", "c" * 64, 0), clock=lambda: datetime(2026, 1, 1, tzinfo=UTC),
        rent_factors=rent_factors, on_static=on_static,
    )  # fmt: skip


@pytest.fixture(scope="module")
def report() -> TrialReport:
    return run()


def row(report: TrialReport, name: str) -> ControllerTrial:
    return next(trial for trial in report.controllers if trial.controller == name)


def test_waiting_is_always_tried_and_is_the_measure_of_the_others(report: TrialReport) -> None:
    assert [trial.controller for trial in report.controllers] == ["wait", "random", "gates"]
    wait = row(report, "wait")
    assert wait.over_wait is None
    assert all(trial.over_wait is None for trial in wait.by_family.values())
    assert wait.committed_parameters == 0
    for name in ("random", "gates"):
        trial = row(report, name)
        difference = np.array(trial.returns) - np.array(wait.returns)
        assert trial.over_wait is not None
        assert trial.over_wait.mean == pytest.approx(difference.mean(), abs=1e-12)
        assert trial.over_wait.lower <= trial.over_wait.mean <= trial.over_wait.upper
        assert trial.over_wait.n == len(KEYS)


def test_families_are_differences_of_their_own_hosts(report: TrialReport) -> None:
    wait, gates = row(report, "wait"), row(report, "gates")
    assert report.families == [host.family for host in identify("benchmark", KEYS)]
    assert set(gates.by_family) == set(report.families)
    for family, trial in gates.by_family.items():
        rows = [index for index, name in enumerate(report.families) if name == family]
        differences = [gates.returns[index] - wait.returns[index] for index in rows]
        assert trial.over_wait is not None
        assert (trial.over_wait.mean, trial.over_wait.n) == (pytest.approx(np.mean(differences), abs=1e-12), 2)
        # Student's quantile of one degree of freedom at 0.975; the bootstrap interval of two differences is their range
        half = 12.7062047 * abs(differences[0] - differences[1]) / 2
        bounds = (trial.over_wait.mean - half, trial.over_wait.mean + half)
        assert (trial.over_wait.lower, trial.over_wait.upper) == pytest.approx(bounds, rel=1e-6, abs=1e-9)


@pytest.mark.parametrize("name", ["wait", "random", "gates"])
def test_every_controller_has_every_number_within_every_family(report: TrialReport, name: str) -> None:
    whole = row(report, name)
    assert list(whole.by_family) == list(dict.fromkeys(report.families))
    for family, trial in whole.by_family.items():
        rows = [index for index, found in enumerate(report.families) if found == family]
        assert trial.episodes == len(rows)
        assert trial.mean_return == pytest.approx(np.mean([whole.returns[index] for index in rows]))
        assert trial.test_accuracy == pytest.approx(np.mean([whole.test_accuracies[index] for index in rows]))
    for number in ("mean_return", "test_accuracy", "validation_accuracy", "committed_parameters"):
        parts = [getattr(trial, number) * trial.episodes for trial in whole.by_family.values()]
        assert sum(parts) / whole.episodes == pytest.approx(getattr(whole, number))


def test_costs_and_test_accuracies_are_means_over_the_hosts(report: TrialReport) -> None:
    wait, gates = row(report, "wait"), row(report, "gates")
    sizes = host_sizes(identify("benchmark", KEYS), WORLD).parameters
    assert gates.host_parameters == wait.host_parameters == pytest.approx(sizes.mean())
    assert (wait.extra_compute, wait.rents, wait.test_over_wait) == (0.0, [0.0] * 10, None)
    price = RewardConfig()
    epochs = np.array(gates.rents) * price.rent_parameters / price.rent * WORLD.horizon
    assert gates.extra_compute == pytest.approx(np.mean(epochs / sizes / WORLD.horizon))
    assert gates.extra_compute > 0
    difference = np.array(gates.test_accuracies) - np.array(wait.test_accuracies)
    assert gates.test_over_wait is not None
    assert gates.test_over_wait.mean == pytest.approx(difference.mean(), abs=1e-12)
    assert not gates.by_rent, "nobody asked"


def test_at_the_rent_itself_a_sweep_repeats_the_results() -> None:
    swept = run(keys=KEYS[:5], world=WORLD.model_copy(update={"horizon": 3}), rent_factors=(0.0, 1.0, 16.0))
    gates = row(swept, "gates")
    free, same, dear = gates.by_rent
    assert (same.mean_return, same.over_wait) == (gates.mean_return, gates.over_wait)
    assert free.mean_return == pytest.approx(gates.mean_return + np.mean(gates.rents))
    assert dear.mean_return == pytest.approx(gates.mean_return - 15 * np.mean(gates.rents))
    assert {one.mean_return for one in row(swept, "wait").by_rent} == {row(swept, "wait").mean_return}
    table = render_rents(swept)
    assert table.header == ("controller", "rent x 0", "rent x 1", "rent x 16")
    assert [cells[0] for cells in table.rows] == ["random", "gates"]


def test_static_networks_are_compared_with_their_own_controller() -> None:
    """Grown here again by hand, from the seeds that the episodes kept."""
    done: list[int] = []
    found = run({"gates": SPECS["gates"]}, on_static=done.append)
    gates, hosts = row(found, "gates"), identify("benchmark", KEYS)
    episodes = run_episodes(TrialJob("gates", SPECS["gates"], hosts, WORLD, RewardConfig(), 0))
    assert gates.returns == episodes.returns.tolist(), "the schedule draws nothing"
    assert row(found, "wait").static == []
    assert sum(done) == len(KEYS)
    for one, rival in zip(gates.static, grow_rivals(hosts, episodes, WORLD, RewardConfig()), strict=True):
        assert one.return_difference.mean == pytest.approx(np.mean(episodes.returns - rival.returns))
        assert one.test_difference.mean == pytest.approx(np.mean(episodes.test_accuracy - rival.test_accuracy))
        assert (one.mean_return, one.mean_epochs) == (pytest.approx(rival.returns.mean()), rival.epochs.mean())
    assert [one.same for one in gates.static] == ["epochs", "compute"]
    assert gates.static[0].mean_epochs == WORLD.horizon
    table = render_static(found)
    assert [cells[:2] for cells in table.rows] == [("gates", "epochs"), ("gates", "compute")]
    assert {len(cells) for cells in table.rows} == {len(table.header)}


def test_a_family_of_one_host_has_numbers_but_no_interval() -> None:
    short = run({"random": SPECS["random"]}, WORLD.model_copy(update={"horizon": 2}), KEYS[:6])
    lone = row(short, "random").by_family[short.families[1]]
    assert (lone.episodes, lone.over_wait) == (1, None)
    assert row(short, "random").by_family[short.families[0]].over_wait is not None
    table = render_families(short)
    assert len(table.rows) == 2 * 5
    assert all(len(cells) == len(table.header) for cells in table.rows)
    assert {cells[4] for cells in table.rows if cells[1] == "wait" or cells[2] == "1"} == {"-"}


class _Trespasser(WaitController):
    """Keeps what is not there on every other host."""

    def decide(self, observations: Observations, masks: Masks, uniforms: NDArray[Any]) -> Decisions:
        decisions = super().decide(observations, masks, uniforms)
        decisions.actions[::2, :2] = OP_INDEX[Op.FOSSILIZE], 0
        return decisions


def test_an_illegal_action_is_counted_and_the_host_waits_instead(
    report: TrialReport, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("simic.validation.episodes.make", lambda *_, **__: _Trespasser())
    found = run({"candidate": ControllerSpec(name="wait")}, WORLD.model_copy(update={"horizon": 3}), KEYS[:4])
    trial = row(found, "candidate")
    assert trial.illegal_actions == 3 * 2
    assert trial.committed_parameters == 0


def test_what_is_no_action_at_all_ends_the_trial(monkeypatch: pytest.MonkeyPatch) -> None:
    class Shapeless(WaitController):
        def decide(self, observations: Observations, masks: Masks, uniforms: NDArray[Any]) -> Decisions:
            decisions = super().decide(observations, masks, uniforms)
            return Decisions(decisions.actions[:, :3], decisions.log_probs)

    monkeypatch.setattr("simic.validation.episodes.make", lambda *_, **__: Shapeless())
    with pytest.raises(IllegalActionError, match="int16"):
        run({}, keys=KEYS[:2])


def test_drl03_neither_order_nor_company_changes_a_result(report: TrialReport) -> None:
    reverse = run(dict(reversed(SPECS.items())), WORLD.model_copy(update={"chunk": 64}))
    for name in ("wait", "random", "gates"):
        assert row(report, name) == row(reverse, name)


def test_processes_change_no_result() -> None:
    short = WORLD.model_copy(update={"horizon": 4})
    apart = run({}, short.model_copy(update={"workers": 2, "chunk": 2}), KEYS[:4])
    assert row(apart, "wait") == row(run({}, short, KEYS[:4]), "wait")


def test_numbers_are_means_over_the_hosts(report: TrialReport) -> None:
    gates = row(report, "gates")
    assert gates.episodes == len(gates.returns) == len(gates.test_accuracies) == len(KEYS)
    assert gates.mean_return == pytest.approx(np.mean(gates.returns))
    assert gates.test_accuracy == pytest.approx(np.mean(gates.test_accuracies))
    assert gates.committed_parameters > 0
    assert gates.illegal_actions == 0


@pytest.mark.parametrize("keys", [[1], [1, 1, 2]], ids=["one host", "a host twice"])
def test_hosts_that_are_no_sample_are_refused(keys: list[int]) -> None:
    with pytest.raises(ConfigError, match="distinct"):
        run(keys=keys)


def test_the_proof_table_shows_every_controller(report: TrialReport) -> None:
    table = render_table(report)
    assert table.header[:3] == ("controller", "return", "over wait")
    assert table.header[3:8] == ("cap", "select", "gain", "noisy", "fine")
    assert [cells[0] for cells in table.rows] == ["wait", "random", "gates"]
    assert all(len(cells) == len(table.header) for cells in table.rows)
    assert table.rows[0][2] == "-"
    over = row(report, "gates").over_wait
    assert over is not None
    assert table.rows[2][2] == f"{over.mean:+.1f} [{over.lower:+.1f}, {over.upper:+.1f}]"
