"""Steps become field reports that tell exactly what happened."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from functools import cache
from itertools import pairwise

import numpy as np
import pytest
from support.builders.action_rows import actions_to_rows

from simic.collection.reporting import NOTICEABLE, Source, field_reports, run_ids, short_id
from simic.contracts.batches import action_of
from simic.contracts.controllers import ControllerSpec
from simic.contracts.field_report import FieldReport, GovernorEvent, Outcome
from simic.contracts.settings.lifecycle import GovernorConfig, LifecycleConfig
from simic.contracts.settings.run import WorldConfig
from simic.contracts.state import HardwareContext, HostIdentity
from simic.controllers.factory import make
from simic.hosts import world_identity as identity
from simic.hosts.ensemble import Ensemble
from simic.hosts.host_sets import identify
from simic.hosts.rollout import Step, rollout
from simic.hosts.world_identity import world_identity
from simic.trust.canonical import digest_of

WORLD = WorldConfig(horizon=4)
HOSTS = identify("benchmark", [3, 11, 20])
ISSUED_AT = datetime(2026, 3, 1, 8, 30, tzinfo=UTC)


@cache
def steps() -> tuple[Step, ...]:
    controller = make(ControllerSpec(name="random"), HOSTS)
    return tuple(rollout(Ensemble(HOSTS, WORLD), controller.decide, seed=1))


def source(hosts: Sequence[HostIdentity] = HOSTS) -> Source:
    ids = run_ids(hosts, "random", None, 1, WORLD)
    return Source("random", None, hosts, ids, HardwareContext(device="cpu", threads=1), ISSUED_AT)


def reports_of(step: Step) -> list[FieldReport]:
    return [report for _, report in field_reports(step, source())]


def test_reports_carry_the_decision_and_its_state() -> None:
    for number, step in enumerate(steps()):
        reports = reports_of(step)
        assert [report.host for report in reports] == list(HOSTS)
        assert [report.step for report in reports] == [number] * 3
        assert all(report.state.epoch == number for report in reports)
        states = step.observations.to_states(HardwareContext(device="cpu", threads=1))
        assert [report.state for report in reports] == states
        found = actions_to_rows([report.action for report in reports], step.observations.blueprints)
        assert np.array_equal(found, step.decisions.actions)
        for report, logs in zip(reports, step.decisions.log_probs, strict=True):
            assert report.log_prob_behaviour.joint == pytest.approx(float(np.nansum(logs)), abs=1e-5)
            assert report.issued_at == ISSUED_AT
            assert report.controller == "random"


def test_metrics_chain_and_only_the_last_report_has_an_end() -> None:
    episode = [reports_of(step)[1] for step in steps()]
    for before, after in pairwise(episode):
        assert after.metrics.validation_accuracy_before == before.metrics.validation_accuracy_after
        assert not before.terminated
        assert before.final_state is None
        assert before.metrics.test_accuracy is None
    last = episode[-1]
    assert last.terminated
    assert not last.truncated
    assert last.final_state is not None
    assert last.final_state.epoch == WORLD.horizon
    assert last.final_state.committed_validation_accuracy == last.metrics.validation_accuracy_after
    assert last.metrics.test_accuracy is not None


def test_ids_follow_from_what_they_name() -> None:
    reports = [report for step in steps() for report in reports_of(step)]
    assert len({report.report_id for report in reports}) == len({report.command_id for report in reports}) == 12
    named = {"set": "benchmark", "key": 3, "controller": "random", "policy_version": None, "seed": 1}
    expected = digest_of({**named, "world": world_identity(WORLD)})[:32]
    assert reports[0].run_id == expected
    assert reports[3].report_id == short_id(f"{expected}:1")
    assert reports[3].command_id == short_id(f"{expected}:1:command")
    others = [
        run_ids(HOSTS, "explore", None, 1, WORLD), run_ids(HOSTS, "random", "a" * 64, 1, WORLD),
        run_ids(HOSTS, "random", None, 2, WORLD),
        *(
            run_ids(HOSTS, "random", None, 1, WORLD.model_copy(update=law))
            for law in (
                {"horizon": 5}, {"prune_epochs": 2}, {"blend": "gate"},
                {"lifecycle": LifecycleConfig(holding_epochs=2)}, {"governor": GovernorConfig(divergence_factor=9.0)},
            )
        ),
    ]  # fmt: skip
    assert len({run_id for ids in [*others, run_ids(HOSTS, "random", None, 1, WORLD)] for run_id in ids}) == 27


def test_how_fast_hosts_are_grown_changes_no_episode() -> None:
    hurried = WORLD.model_copy(update={"chunk": 7, "threads": 2, "workers": 3, "snapshot_mb": 9})
    assert run_ids(HOSTS, "random", None, 1, hurried) == run_ids(HOSTS, "random", None, 1, WORLD)


def test_changed_hosts_live_other_episodes(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same keys in another version of the world must not contradict what the lake holds of them."""
    before = run_ids(HOSTS, "random", None, 1, WORLD)
    monkeypatch.setattr(identity, "world_digest", lambda: "f" * 64)
    assert not set(before) & set(run_ids(HOSTS, "random", None, 1, WORLD))


def test_reports_survive_the_wire() -> None:
    for report in (report for step in steps() for report in reports_of(step)):
        assert FieldReport.model_validate_json(report.model_dump_json()) == report


def test_seed_ids_name_the_episode() -> None:
    acting = [
        (step, row, report)
        for step in steps()
        for row, report in field_reports(step, source())
        if report.action.slot is not None
    ]
    assert acting
    for step, row, report in acting:
        assert report.seed_id == f"{report.run_id}/{step.outcome.seed_ids[row]}"
        assert report.blueprint_id is not None
        action = action_of(step.decisions.actions[row], step.observations.blueprints)
        assert action.blueprint in (None, report.blueprint_id)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (NOTICEABLE * 1.01, Outcome.SUCCESS),
        (NOTICEABLE * 0.9, Outcome.NEUTRAL),
        (0.0, Outcome.NEUTRAL),
        (-NOTICEABLE * 0.9, Outcome.NEUTRAL),
        (-NOTICEABLE * 1.01, Outcome.REGRESSION),
    ],
)
def test_outcome_follows_validation_accuracy(change: float, expected: Outcome) -> None:
    step = steps()[0]
    outcome = step.outcome._replace(
        validation_accuracy_before=np.full(3, 0.5, np.float32),
        validation_accuracy_after=np.full(3, 0.5 + change, np.float32),
    )
    assert {report.outcome for report in reports_of(step._replace(outcome=outcome))} == {expected}


def test_a_panic_aborts_and_ends_its_own_episode_only() -> None:
    """L4: the governor's event is in the report of the very step."""
    step = steps()[1]
    event = GovernorEvent(kind="DIVERGENCE", message="validation loss 40 nats")
    outcome = step.outcome._replace(
        governor=[None, event, None],
        mitigation=[[], ["rolled_back"], []],
        terminated=np.array([False, True, False]),
        committed_validation_accuracy=np.array([np.nan, 0.25, np.nan], np.float32),
        test_accuracy=np.array([np.nan, 0.5, np.nan], np.float32),
    )
    reports = reports_of(step._replace(outcome=outcome))
    assert [report.outcome is Outcome.ABORTED for report in reports] == [False, True, False]
    aborted = reports[1]
    assert aborted.governor == event
    assert aborted.mitigation == ["rolled_back"]
    assert aborted.final_state is not None
    assert aborted.final_state.committed_validation_accuracy == 0.25
    assert reports[0].final_state is None


def test_finished_hosts_are_not_reported() -> None:
    step = steps()[2]
    live = np.array([True, False, True])
    absent = np.array([0.5, np.nan, 0.5], np.float32)
    outcome = step.outcome._replace(live=live, validation_accuracy_after=absent, validation_loss_after=absent)
    rows = [row for row, _ in field_reports(step._replace(live=live, outcome=outcome), source())]
    assert rows == [0, 2]
    assert list(field_reports(step._replace(live=np.zeros(3, dtype=bool)), source())) == []
