"""A record says what the host said, and nothing where nothing was measured."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray
from support.grown import ensemble

from simic.contracts.actions import Op
from simic.contracts.batches import Decisions, Masks, Observations
from simic.contracts.config import RewardConfig, WorldConfig
from simic.contracts.controllers import ControllerSpec, Plan, PlannedSeed
from simic.contracts.episode import EpisodeRecord
from simic.contracts.field_report import GovernorKind
from simic.contracts.lifecycle import SeedStage
from simic.hosts.rollout import Step, rollout
from simic.validation.episodes import Episodes, build, score
from simic.validation.records import episode_record

HORIZON = 10
WORLD = WorldConfig(horizon=HORIZON, workers=1)
SPEC = ControllerSpec(name="schedule", plan=Plan(seeds=[PlannedSeed(epoch=1, slot=2, blueprint="gate", alpha_speed=3)]))


@pytest.fixture(scope="module")
def steps() -> list[Step]:
    """Two hosts under a fixed plan; the second one's weights turn to NaN before its seventh epoch."""
    grown = ensemble([1, 6], horizon=HORIZON)
    planned = build(SPEC, grown.identities)

    def decide(observations: Observations, masks: Masks, uniforms: NDArray[np.float64]) -> Decisions:
        if int(observations.system["epoch"].max()) == 6:
            grown._weights.stem[1] = float("nan")
        return planned.decide(observations, masks, uniforms)

    return list(rollout(grown, decide, 0))


@pytest.fixture(scope="module")
def results(steps: list[Step]) -> Episodes:
    return score(steps, 2, WORLD, RewardConfig())


@pytest.fixture(scope="module")
def records(steps: list[Step], results: Episodes) -> list[EpisodeRecord]:
    hosts = ensemble([1, 6], horizon=HORIZON).identities
    return [episode_record(steps, row, host, "schedule", results) for row, host in enumerate(hosts)]


def test_a_record_tells_the_episode(records: list[EpisodeRecord], results: Episodes) -> None:
    whole = records[0]
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


def test_a_contribution_is_null_until_the_seed_was_switched_off_once(records: list[EpisodeRecord]) -> None:
    for record in records[0].epochs:
        for slot in record.slots:
            assert (slot.contribution is not None) == (slot.alpha > 0), (record.epoch, slot)


def test_the_running_network_and_the_one_to_be_kept_are_told_apart(steps: list[Step], results: Episodes) -> None:
    """With a seed that is never fossilised the last running accuracy is not that of the network to be kept."""
    record = episode_record(steps, 0, ensemble([1]).identities[0], "schedule", results)
    running = float(steps[-1].after.system["validation_accuracy"][0])
    assert record.accuracy[-1] == running
    assert record.committed_accuracy == steps[-1].outcome.committed_validation_accuracy[0]


def test_what_the_governor_undid_was_not_measured(records: list[EpisodeRecord], steps: list[Step]) -> None:
    stopped = records[1]
    assert len(stopped.epochs) == 7
    last = stopped.epochs[-1]
    assert last.governor is not None
    assert last.governor.kind is GovernorKind.NON_FINITE
    assert len(last.mitigation) == 3
    assert last.train_loss is None
    assert {slot.contribution for slot in last.slots} == {None}
    assert np.isfinite(steps[6].after.system["train_loss"][1]), "the observation still shows the epoch before"
    assert all(record.train_loss is not None for record in stopped.epochs[:-1])
    assert last.validation_accuracy == pytest.approx(stopped.committed_accuracy)
