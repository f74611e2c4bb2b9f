"""The scripted expert: it brings its plan about from wherever it is."""

from __future__ import annotations

import numpy as np
import pytest
from support.builders.observations import BLUEPRINTS, make_scene

from simic.contracts.actions import OPS, Op
from simic.contracts.batches import OP_INDEX, Masks, Observations
from simic.contracts.controllers import ControllerSpec, Plan, PlannedSeed
from simic.contracts.errors import ConfigError, ContractError
from simic.contracts.settings.run import WorldConfig
from simic.contracts.splits import Split
from simic.contracts.state import SeedState
from simic.controllers.factory import make
from simic.controllers.plugins.expert import ExpertController
from simic.controllers.schedule_controller import ScheduleController
from simic.hosts.ensemble import Ensemble
from simic.hosts.host_sets import draw_keys, identify
from simic.hosts.rollout import rollout

PLAN = Plan(seeds=[PlannedSeed(epoch=2, slot=1, blueprint="norm", alpha_speed=3)])
DORMANT = SeedState(stage="DORMANT", stage_epochs=0)
HORIZON = 20


def seed(blueprint: str) -> SeedState:
    return SeedState(stage="TRAINING", blueprint=blueprint, stage_epochs=1)


def act(slots: list[SeedState], epoch: int, legal: dict[int, set[Op]], plan: Plan = PLAN) -> tuple[Op, int, int]:
    """Operation, slot and blueprint for one host at ``epoch``, given what each slot allows."""
    base = make_scene(0, 1, slots=(3, 4), layers=(4, 5)).states[0]
    state = base.model_copy(update={"slots": slots, "epoch": epoch, "horizon": HORIZON})
    mask = np.zeros((3, len(OPS)), dtype=bool)
    for slot, ops in legal.items():
        mask[slot, [OP_INDEX[op] for op in ops]] = True
    op = mask.any(0, keepdims=True)
    op[0, 0] = True
    masks = Masks(op, mask, np.ones((1, len(BLUEPRINTS)), dtype=bool))
    observations = Observations.from_states([state], BLUEPRINTS)
    row = ExpertController([plan]).decide(observations, masks, np.zeros((1, 7))).actions[0].tolist()
    return OPS[row[0]], row[1], row[2]


ROOM = {slot: {Op.GERMINATE} for slot in range(3)}


def test_it_germinates_late_rather_than_never_while_there_is_time() -> None:
    germinate = (Op.GERMINATE, 1, BLUEPRINTS.index("norm"))
    found = [act([DORMANT] * 3, epoch, ROOM) for epoch in range(HORIZON)]
    assert found[:2] == [(Op.WAIT, -1, -1)] * 2
    assert found[2:13] == [germinate] * 11
    assert found[13:] == [(Op.WAIT, -1, -1)] * 7, "a seed of five epochs and a ramp of three could not be kept"


def test_it_prunes_what_the_plan_does_not_know_and_keeps_what_it_does() -> None:
    every = {Op.PRUNE, Op.ADVANCE, Op.FOSSILIZE}
    assert act([seed("norm"), DORMANT, DORMANT], 5, {0: every})[:2] == (Op.PRUNE, 0)
    assert act([DORMANT, seed("gate"), DORMANT], 5, {1: every})[:2] == (Op.PRUNE, 1)
    assert act([DORMANT, seed("norm"), DORMANT], 5, {1: every})[:2] == (Op.FOSSILIZE, 1)
    assert act([DORMANT, seed("norm"), DORMANT], 5, {1: every - {Op.FOSSILIZE}})[:2] == (Op.ADVANCE, 1)
    assert act([DORMANT, seed("norm"), DORMANT], 5, {1: {Op.PRUNE}})[0] is Op.WAIT
    assert act([DORMANT, seed("norm"), DORMANT], 5, {1: every}, Plan())[:2] == (Op.PRUNE, 1)
    assert act([DORMANT] * 3, 5, ROOM, Plan())[0] is Op.WAIT


def test_undisturbed_it_does_what_the_plan_says() -> None:
    """On real hosts, action by action as the schedule does; more than one host, each with a plan of its own."""
    hosts = identify("benchmark", draw_keys("benchmark", Split.TRAIN, 4, 30_000))
    plans = [PLAN, Plan(), Plan(seeds=[PlannedSeed(epoch=0, slot=0, blueprint="gate")]), PLAN]
    world = WorldConfig(horizon=12)
    both = [
        [step.decisions.actions.tolist() for step in rollout(Ensemble(hosts, world), controller.decide, seed=0)]
        for controller in (ExpertController(plans), ScheduleController("schedule", plans))
    ]
    assert both[0] == both[1]
    assert any(row[0] == OP_INDEX[Op.FOSSILIZE] for rows in both[0] for row in rows)


def test_plans_that_cannot_be_meant_are_refused() -> None:
    with pytest.raises(ConfigError, match="unheard"):
        act([DORMANT] * 3, 2, ROOM, Plan(seeds=[PlannedSeed(epoch=0, slot=0, blueprint="unheard")]))
    with pytest.raises(ConfigError, match=r"0\.6"):
        ExpertController([Plan(seeds=[PlannedSeed(epoch=0, slot=0, blueprint="gate", alpha_target=0.6)])])
    with pytest.raises(ContractError, match="0 plans cannot steer 1"):
        ExpertController([]).decide(*_one(), np.zeros((1, 7)))


def _one() -> tuple[Observations, Masks]:
    scene = make_scene(0, 1)
    return scene.observations, scene.masks


def test_it_is_made_by_name_and_told_each_host_s_family() -> None:
    hosts = identify("benchmark", [0, 1, 2])
    assert make(ControllerSpec(name="expert"), hosts).name == "expert"
