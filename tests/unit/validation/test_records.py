"""A record says what the host said, and nothing where nothing was measured."""

from __future__ import annotations

import numpy as np
import pytest
from support.builders.ensembles import ensemble

from simic.contracts.actions import Op
from simic.contracts.controllers import ControllerSpec, Plan, PlannedSeed
from simic.contracts.episode import EpisodeRecord
from simic.contracts.field_report import GovernorEvent, GovernorKind
from simic.contracts.lifecycle import SeedStage
from simic.contracts.rewards import RewardConfig
from simic.contracts.settings.run import WorldConfig
from simic.controllers.factory import make
from simic.hosts.host_sets import identify
from simic.hosts.rollout import Step, rollout
from simic.validation.episodes import Scores, episode_record, epoch_record, score

HORIZON = 10
WORLD = WorldConfig(horizon=HORIZON, workers=1)
SPEC = ControllerSpec(name="schedule", plan=Plan(seeds=[PlannedSeed(epoch=1, slot=2, blueprint="gate", alpha_speed=3)]))


@pytest.fixture(scope="module")
def steps() -> list[Step]:
    """Two hosts under a fixed plan."""
    grown = ensemble([1, 6], horizon=HORIZON)
    return list(rollout(grown, make(SPEC, grown.identities).decide, 0))


@pytest.fixture(scope="module")
def results(steps: list[Step]) -> Scores:
    return score(steps, 2, WORLD, RewardConfig())


@pytest.fixture(scope="module")
def whole(steps: list[Step], results: Scores) -> EpisodeRecord:
    return episode_record(steps, 0, identify("benchmark", [1])[0], "schedule", results)


def test_a_record_tells_the_episode(whole: EpisodeRecord, results: Scores) -> None:
    assert (whole.slots, whole.horizon, len(whole.epochs)) == (3, HORIZON, HORIZON)
    assert len(whole.accuracy) == HORIZON + 1
    assert whole.committed_accuracy == results.validation_accuracy[0]
    assert whole.test_accuracy == results.test_accuracy[0]
    assert whole.return_points == results.returns[0]
    decisions = [record.action for record in whole.epochs if record.action.op is not Op.WAIT]
    assert [action.op for action in decisions][:2] == [Op.GERMINATE, Op.ADVANCE]
    assert {action.slot for action in decisions} == {2}
    grown = [record.slots[2] for record in whole.epochs[1:]]
    assert {slot.blueprint for slot in grown} == {"gate"}
    assert grown[0].stage is SeedStage.TRAINING
    assert SeedStage.BLENDING in {slot.stage for slot in grown}
    alphas = [slot.alpha for slot in grown]
    assert alphas == sorted(alphas)
    assert alphas[-1] == 1.0


def test_a_contribution_is_null_until_the_seed_was_switched_off_once(whole: EpisodeRecord) -> None:
    for record in whole.epochs:
        for slot in record.slots:
            assert (slot.contribution is not None) == (slot.alpha > 0), (record.epoch, slot)
            assert (slot.contribution_error is not None) == (slot.alpha > 0), (record.epoch, slot)


def test_the_running_network_and_the_one_to_be_kept_are_told_apart(whole: EpisodeRecord, steps: list[Step]) -> None:
    """The last epoch shows the network as it ran, uncommitted seeds and all; what is kept stands beside it."""
    assert whole.accuracy[-1] == steps[-1].after.system["validation_accuracy"][0]
    assert whole.committed_accuracy == steps[-1].outcome.committed_validation_accuracy[0]


def test_what_the_governor_undid_was_not_measured(steps: list[Step]) -> None:
    """The observation after a panic still shows the loss and the contributions of the epoch before."""
    step = steps[6]
    event = GovernorEvent(kind=GovernorKind.DIVERGENCE, message="training loss 9 exceeds 7")
    outcome = step.outcome._replace(governor=[None, event], mitigation=[[], ["ended the episode"]])
    calm, stopped = (epoch_record(step._replace(outcome=outcome), row) for row in (0, 1))
    assert (stopped.governor, stopped.mitigation) == (event, ["ended the episode"])
    assert stopped.train_loss is None
    assert {(slot.contribution, slot.contribution_error) for slot in stopped.slots} == {(None, None)}
    assert calm.governor is None
    assert calm.train_loss == step.after.system["train_loss"][0]
    assert calm.slots[2].contribution is not None
    assert epoch_record(step, 1).slots[2].contribution is not None


def test_a_finished_host_adds_nothing(steps: list[Step], results: Scores) -> None:
    cut = [*steps[:4], *(step._replace(live=np.array([True, False])) for step in steps[4:])]
    assert len(episode_record(cut, 1, identify("benchmark", [6])[0], "schedule", results).epochs) == 4
