"""A rollout is judged by landed reports that carry the policy's digest; too little evidence never advances it."""

from __future__ import annotations

from datetime import datetime, timedelta
from pathlib import Path

import pytest
from support.builders.judged_candidates import judged
from support.builders.reports import episode
from support.homes.champion_homes import FORMER, PRESENT, crowned_home, open_home
from support.homes.pipeline import land
from support.homes.rollouts import RollingOut

from simic.app import promotion, rollout
from simic.app.checks.doctor import open_doctor
from simic.app.container import Container
from simic.app.keys import Keys
from simic.contracts.errors import ConfigError, RolloutFailedError, TransientError
from simic.contracts.field_report import FieldReport
from simic.contracts.results.lake import Health
from simic.contracts.results.receipts import PolicyVersion
from simic.contracts.results.rollout import RolloutVerdict
from simic.ledgers.collections import begin_collection
from simic.ledgers.policies import read_history
from simic.runtime.settings import load_profile


@pytest.fixture
def setting(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> RollingOut:
    return RollingOut(crowned_home(tmp_path / "place", tmp_path_factory))


def test_a_rollout_advances_when_its_hours_are_over_and_its_episodes_succeed(setting: RollingOut) -> None:
    plan = setting.begun.rollout
    assert plan is not None and (plan.share, plan.hours, plan.min_success) == (0.1, 24.0, 0.8)
    assert plan.baseline == setting.former
    issued_by = setting.begun.issued_by
    assert issued_by == setting.container.actor and issued_by is not None and issued_by.run is None
    with pytest.raises(TransientError, match="insufficient evidence, no whole episode of it has landed, 30 are needed"):
        rollout.advance(setting.container)
    setting.ahead = timedelta(hours=25)
    setting.report(29)
    with pytest.raises(TransientError, match=r"insufficient evidence, 29 of 29 episodes succeeded, 100% \[88%, 100%\]"):
        rollout.advance(setting.container)
    setting.report(3, first=100)
    setting.ahead = timedelta(hours=23)
    with pytest.raises(TransientError, match=r"passing, 32 of 32 .*it goes on until"):
        rollout.advance(setting.container)
    assert setting.updates() == 2
    setting.ahead = timedelta(hours=25)
    found, published = rollout.advance(setting.container)
    assert found is not None and found.verdict is RolloutVerdict.PASSING and found.baseline.episodes == 0
    assert published is not None and published.delivered and published.update.rollout is None
    assert rollout.advance(setting.container) == (None, None)
    assert rollout.status(setting.home, setting.now()) is None
    assert (setting.updates(), setting.champion()) == (3, PRESENT)


def test_a_policy_that_fails_is_rolled_back_for_all_before_its_hours_are_over(setting: RollingOut) -> None:
    setting.report(10, bad=20)
    with pytest.raises(RolloutFailedError, match=r"failing, 10 of 30 .*rolled back: 1\.0\.0 .*champion and published"):
        rollout.advance(setting.container)
    assert (setting.updates(), setting.champion()) == (3, FORMER)
    assert rollout.status(setting.home, setting.now()) is None
    reason = read_history(setting.home).done[-1].reason
    assert reason.startswith("rollout of tamiyo 1.0.1 to 10%: failing, 10 of 30 episodes succeeded")
    assert RolloutFailedError.exit_code == 3


def test_a_collection_of_this_home_does_not_cut_open_trainings_off(setting: RollingOut) -> None:
    """All its reports carry one moment: three times the duration of nothing is over at once."""
    began = setting.begun.issued_at
    land_at(setting, "collected", [r for key in range(4) for r in episode(key, controller="explore")], began)
    live = [r for key in range(3) for r in episode(500 + key, policy_version=setting.begun.digest)[:2]]
    land_at(setting, "live", live, began + timedelta(minutes=1))
    setting.ahead = timedelta(minutes=2)
    found = rollout.status(setting.home, setting.now())
    assert found is not None and found.verdict is RolloutVerdict.INSUFFICIENT
    assert (found.policy.episodes, found.policy.open) == (0, 3)


def land_at(setting: RollingOut, name: str, reports: list[FieldReport], moment: datetime) -> None:
    same = [report.model_copy(update={"issued_at": moment}) for report in reports]
    land(setting.home, same, name=name, clock=lambda: moment)


@pytest.mark.parametrize("start", ["partial", "full"])
def test_a_key_that_is_revoked_does_not_end_a_rollout(setting: RollingOut, start: str) -> None:
    """An update for all would give everybody a champion whose rollout lacks evidence."""
    Keys(setting.container).revoke(setting.container.signer.key_id, "on a lost laptop")
    repaired = open_doctor(setting.container).examine(is_repair=True)
    assert [check.health for check in repaired.checks if check.name == "outbox"] == [Health.HEALTHY]
    Keys(setting.container).reseal(is_dry_run=False)
    app = Container(setting.home, load_profile("quick", {"rollout.start": start}), 0)
    again = promotion.publish_champion(app)
    assert again.delivered
    assert again.update.key_id != setting.begun.key_id
    assert again.update.rollout == setting.begun.rollout
    found = rollout.status(setting.home, setting.now())
    assert found is not None and found.update == again.update


@pytest.mark.parametrize(
    ("good", "bad", "verdict"),
    [
        (0, 3, RolloutVerdict.FAILING),
        (2, 1, RolloutVerdict.INSUFFICIENT),
        (26, 4, RolloutVerdict.UNDECIDED),
        (23, 7, RolloutVerdict.FAILING),
    ],
)
def test_the_verdict_follows_the_counts(setting: RollingOut, good: int, bad: int, verdict: RolloutVerdict) -> None:
    setting.report(good, bad)
    found = rollout.status(setting.home, setting.now())
    assert found is not None
    assert (found.policy.succeeded, found.policy.episodes, found.verdict) == (good, good + bad, verdict)


def test_only_whole_episodes_of_the_policy_since_the_update_count(setting: RollingOut) -> None:
    setting.report(2)
    setting.report(2, first=10, policy_version=setting.former)
    setting.report(2, first=20, issued_at=setting.begun.issued_at - timedelta(hours=1))
    setting.report(2, first=30, branch_of="a" * 32, branch_step=0)
    setting.report(1, first=40, accuracies=[0.5, 0.494])
    setting.report(1, first=50, accuracies=[0.5, 0.496])
    found = rollout.status(setting.home, setting.now())
    assert found is not None
    assert (found.policy.succeeded, found.policy.episodes, found.baseline.episodes) == (3, 4, 2)


def test_an_episode_that_never_ends_is_a_failure_when_others_would_have_ended_long_ago(setting: RollingOut) -> None:
    """Three whole ones took ten minutes each; of three without an end, one has been open for more than thirty."""
    start, minutes = setting.begun.issued_at + timedelta(minutes=1), timedelta(minutes=1)
    rows = []
    for key, (first, is_whole) in enumerate([(0, True)] * 3 + [(5, False), (25, False), (26, False)]):
        steps = episode(200 + key, policy_version=setting.begun.digest)
        paced = [
            step.model_copy(update={"issued_at": start + minutes * (first + 10 * number / (len(steps) - 1))})
            for number, step in enumerate(steps)
        ]
        rows += paced if is_whole else paced[:2]
    land(setting.home, rows, name="reports", clock=lambda: start + timedelta(hours=1))
    found = rollout.status(setting.home, start + timedelta(minutes=35, seconds=30))
    assert found is not None
    assert (found.policy.succeeded, found.policy.episodes, found.policy.cut_off, found.policy.open) == (3, 4, 1, 2)
    assert "3 of 4 episodes succeeded, 75% [19%, 99%], 1 were cut off, 2 are open" in found.told()


@pytest.mark.parametrize(("crashed", "verdict"), [(0, RolloutVerdict.PASSING), (20, RolloutVerdict.UNDECIDED)])
def test_trainings_that_may_have_crashed_let_no_rollout_pass(
    setting: RollingOut, crashed: int, verdict: RolloutVerdict
) -> None:
    """A crash shows late, and whole episodes at once: of 60 trainings 20 crash, and all others succeed."""
    setting.report(40)
    begun = [episode(300 + key, policy_version=setting.begun.digest)[:2] for key in range(crashed)]
    at = setting.begun.issued_at + timedelta(minutes=1)
    land(setting.home, [step.model_copy(update={"issued_at": at}) for steps in begun for step in steps], name="begun")
    found = rollout.status(setting.home, at)
    assert found is not None
    assert (found.policy.succeeded, found.policy.episodes, found.policy.open) == (40, 40, crashed)
    assert found.verdict is verdict


def test_collections_of_this_home_are_no_evidence(setting: RollingOut) -> None:
    setting.report(2)
    started = setting.begun.issued_at + timedelta(minutes=2, microseconds=1)
    setting.report(0, bad=30, first=100, issued_at=started)
    for digest in (setting.former, setting.begun.digest):
        begin_collection(setting.home, digest, started)
    found = rollout.status(setting.home, setting.now())
    assert found is not None
    assert (found.policy.succeeded, found.policy.episodes, found.verdict) == (2, 2, RolloutVerdict.INSUFFICIENT)


@pytest.mark.parametrize(("good", "bad"), [(60, 0), (0, 60), (None, None)], ids=["advance", "fail", "abort"])
def test_a_promotion_in_between_is_neither_published_nor_undone(
    setting: RollingOut, monkeypatch: pytest.MonkeyPatch, good: int | None, bad: int
) -> None:
    """Another process promotes after the command looked who is champion, and before it holds the registry's lock."""
    if good is not None:
        setting.report(good, bad)
    setting.ahead = timedelta(hours=25)
    look, registry = setting.container.registry.champion, open_home(setting.home).registry
    evidence = judged(setting.home, b"new", champion=setting.begun.digest)

    def look_too_early() -> PolicyVersion | None:
        seen = look()
        registry.promote(registry.record(evidence), evidence.validation, evidence.gate)
        return seen

    monkeypatch.setattr(setting.container.registry, "champion", look_too_early)
    with pytest.raises(TransientError, match=r"changed meanwhile: expected version 2 .*found version 4"):
        if good is None:
            rollout.abort(setting.container, "worse")
        else:
            rollout.advance(setting.container)
    monkeypatch.undo()
    assert (setting.updates(), setting.champion()) == (2, 4)
    _, published = rollout.advance(setting.container)
    assert published is not None and published.update.rollout is not None
    assert (published.update.version, published.update.rollout.baseline) == ("1.0.3", setting.former)


def test_an_abort_that_was_cut_short_is_finished_by_the_next_command(setting: RollingOut) -> None:
    promotion.roll_back(setting.container, "cut short before it was published")
    found, published = rollout.advance(setting.container)
    assert found is None
    assert published is not None and published.update.digest == setting.former
    with pytest.raises(ConfigError, match="no rollout is in progress"):
        rollout.abort(setting.container, "again")
    assert (setting.updates(), setting.champion()) == (3, FORMER)
