"""Scripted controllers: legal, exact about their chances, and using every slot."""

from __future__ import annotations

import math

import numpy as np
import pytest
from numpy.typing import NDArray
from support.builders.observations import BLUEPRINTS, Scene, make_scene

from simic.contracts.actions import ALPHA_SPEEDS, OPS, RELEVANT_HEADS, Head, Op
from simic.contracts.batches import HEAD_INDEX, OP_INDEX, Masks, Observations
from simic.contracts.controllers import HeuristicRules
from simic.contracts.errors import ConfigError
from simic.contracts.settings.run import WorldConfig
from simic.contracts.splits import Split
from simic.contracts.state import SeedState, SystemState
from simic.controllers.plugins.explore import ExploreController, operation_table
from simic.controllers.plugins.heuristic import HeuristicController
from simic.controllers.plugins.random import RandomController
from simic.controllers.plugins.wait import WaitController
from simic.controllers.protocol import Controller
from simic.controllers.sampling import pad_slots
from simic.hosts.ensemble import Ensemble
from simic.hosts.host_sets import draw_keys, identify
from simic.hosts.rollout import rollout

BY_HAND = HeuristicRules()
EAGER = HeuristicRules(
    window=0, plateau=1.0, keep=0.0, hurts=0.0, patience=1, first_epoch=1, time_needed=5, blueprints=["gate", "norm"],
    blueprint_epochs=5, slot_epochs=3, alpha_speed=0,
)  # fmt: skip
CONTROLLERS: list[Controller] = [
    WaitController(), RandomController(), ExploreController(), HeuristicController(BY_HAND), HeuristicController(EAGER),
]  # fmt: skip


def assert_legal(scene: Scene, actions: np.ndarray) -> None:
    for host, (op, slot, blueprint, *_) in enumerate(actions.tolist()):
        assert scene.masks.op[host, op]
        if op != OP_INDEX[Op.WAIT]:
            assert scene.masks.slot[scene.observations.slot_ptr[host] + slot, op]
        if op == OP_INDEX[Op.GERMINATE]:
            assert scene.masks.blueprint[host, blueprint]


@pytest.mark.parametrize("controller", CONTROLLERS, ids=lambda controller: controller.name)
def test_only_legal_actions_and_only_relevant_heads(controller: Controller) -> None:
    for seed in range(10):
        scene = make_scene(seed, 60, slots=(0, 4))
        decisions = controller.decide(scene.observations, scene.masks, scene.uniforms)
        assert_legal(scene, decisions.actions)
        for row, logs in zip(decisions.actions.tolist(), decisions.log_probs, strict=True):
            relevant = [HEAD_INDEX[head] for head in RELEVANT_HEADS[OPS[row[0]]]]
            assert [i for i, value in enumerate(row) if value >= 0] == relevant
            assert [i for i, value in enumerate(logs) if not np.isnan(value)] == relevant
        again = controller.decide(scene.observations, scene.masks, scene.uniforms)
        assert np.array_equal(again.actions, decisions.actions)


def test_random_is_uniform_in_every_head() -> None:
    scene = make_scene(1, 400)
    decisions = RandomController().decide(scene.observations, scene.masks, scene.uniforms)
    slots = pad_slots(scene.masks.slot, scene.observations.slot_ptr)
    for host, (row, logs) in enumerate(zip(decisions.actions.tolist(), decisions.log_probs.tolist(), strict=True)):
        op = row[0]
        sizes = {
            Head.OP: scene.masks.op[host].sum(), Head.SLOT: slots[host, :, op].sum(),
            Head.BLUEPRINT: scene.masks.blueprint[host].sum(), Head.TEMPO: 3, Head.ALPHA_TARGET: 3,
            Head.ALPHA_SPEED: 4, Head.ALPHA_CURVE: 3,
        }  # fmt: skip
        for head in RELEVANT_HEADS[OPS[op]]:
            assert logs[HEAD_INDEX[head]] == pytest.approx(-math.log(sizes[head]), abs=1e-6)


def test_explore_reports_the_probability_it_acted_with() -> None:
    scene = make_scene(2, 500)
    table = operation_table(scene.observations, scene.masks)
    decisions = ExploreController().decide(scene.observations, scene.masks, scene.uniforms)
    ops = decisions.actions[:, 0]
    assert np.allclose(decisions.log_probs[:, 0], np.log(table[np.arange(500), ops]), atol=1e-6)
    assert np.allclose(table.sum(1), 1.0)
    is_too_early = (scene.observations.system["epoch"] == 0)[:, None] & (np.arange(6) == OP_INDEX[Op.GERMINATE])
    assert (table[scene.masks.op & ~is_too_early] > 0).all()
    assert (table[is_too_early] == 0).all()
    assert (table[~scene.masks.op] == 0).all()
    assert (table[:, OP_INDEX[Op.WAIT]] >= 0.05 - 1e-12).all()


def germination_hazard(horizon: int) -> NDArray[np.float64]:
    """Of the exploring behaviour, by epoch, while germinating is legal."""
    base = make_scene(3, 1).observations.take(np.zeros(horizon, dtype=np.int64))
    system = {"epoch": np.arange(horizon, dtype=np.int32), "horizon": np.full(horizon, horizon, np.int32)}
    observations = Observations(**{**vars(base), "system": {**base.system, **system}})
    op = np.zeros((horizon, 6), dtype=bool)
    op[:, [OP_INDEX[Op.WAIT], OP_INDEX[Op.GERMINATE]]] = True
    masks = Masks(op, np.ones((int(observations.slot_ptr[-1]), 6), dtype=bool), np.ones((horizon, 6), dtype=bool))
    return operation_table(observations, masks)[:, OP_INDEX[Op.GERMINATE]]


def test_explore_germinates_early_and_sometimes_never() -> None:
    """Over a life in which germinating stays legal until it happens."""
    alive = np.cumprod(1 - germination_hazard(20))
    assert 0.1 < alive[-1] < 0.2
    assert 1 - alive[8] > 0.7


@pytest.mark.parametrize("horizon", [8, 20, 40])
def test_explore_looks_before_it_grows(horizon: int) -> None:
    """It waits out epoch 0, in which nothing was seen yet, however long the episode; and only that."""
    hazard = germination_hazard(horizon)
    assert hazard[0] == 0.0 < 0.1 < hazard[1]


def host(seeds: list[SeedState], *, epoch: int, accuracies: list[float]) -> SystemState:
    base = make_scene(0, 1, slots=(3, 4), layers=(4, 5)).states[0]
    return base.model_copy(
        update={"slots": seeds, "epoch": epoch, "horizon": 20, "validation_accuracy_history": accuracies}
    )


DORMANT = SeedState(stage="DORMANT", stage_epochs=0)


def held(contribution: float | None) -> SeedState:
    return SeedState(
        stage="HOLDING", blueprint="gate", stage_epochs=1, contribution=contribution, contribution_epochs=0
    )


def decide(states: list[SystemState], legal: list[Op], rules: HeuristicRules = BY_HAND) -> list[list[int]]:
    observations = Observations.from_states(states, BLUEPRINTS)
    slot = np.zeros((len(observations.slots["stage"]), 6), dtype=bool)
    empty = observations.slots["stage"] == 0
    for op in legal:
        slot[:, OP_INDEX[op]] = empty if op is Op.GERMINATE else ~empty
    op = np.add.reduceat(slot, observations.slot_ptr[:-1], axis=0) > 0
    op[:, 0] = True
    masks = Masks(op, slot, np.ones((len(states), len(BLUEPRINTS)), dtype=bool))
    controller = HeuristicController(rules)
    return controller.decide(observations, masks, np.zeros((len(states), 7))).actions.tolist()


FLAT, RISING = [0.5, 0.5, 0.5], [0.3, 0.4, 0.5]


def test_drl06_heuristic_grows_on_a_plateau_in_every_slot() -> None:
    """DRL-06: all slots and all blueprints have their turn; no growth while the host improves or time is short."""
    states = [host([DORMANT] * 3, epoch=epoch, accuracies=FLAT) for epoch in range(20)]
    rows = decide(states, [Op.GERMINATE])
    growing = [row for epoch, row in enumerate(rows) if 20 - epoch >= BY_HAND.time_needed]
    assert {row[0] for row in growing} == {OP_INDEX[Op.GERMINATE]}
    assert {row[1] for row in growing} == {0, 1, 2}
    assert len({row[2] for row in growing}) >= 5
    assert all(row[0] == 0 for epoch, row in enumerate(rows) if 20 - epoch < BY_HAND.time_needed)
    for accuracies in (RISING, [0.5], [0.5, 0.5]):
        assert decide([host([DORMANT] * 3, epoch=5, accuracies=accuracies)], [Op.GERMINATE])[0][0] == 0


def test_l17_heuristic_keeps_what_helps_and_prunes_what_hurts() -> None:
    """L17: it reads the same contribution as everyone and does fossilise."""
    legal = [Op.FOSSILIZE, Op.PRUNE, Op.SET_ALPHA_TARGET]
    cases = [
        (BY_HAND.keep, Op.FOSSILIZE),
        (0.2, Op.FOSSILIZE),
        (0.0, Op.WAIT),
        (BY_HAND.hurts - 1e-3, Op.PRUNE),
        (None, Op.WAIT),
    ]
    for contribution, expected in cases:
        row = decide([host([DORMANT, DORMANT, held(contribution)], epoch=9, accuracies=FLAT)], legal)[0]
        assert OPS[row[0]] is expected, contribution
        assert row[1] == (-1 if expected is Op.WAIT else 2)


def test_heuristic_gives_up_on_a_seed_that_proves_nothing_or_drags_its_host_down() -> None:
    late = held(0.0).model_copy(update={"stage_epochs": BY_HAND.patience + 1})
    blending = SeedState(stage="BLENDING", blueprint="dropout", stage_epochs=1, alpha=0.5, contribution=0.0)
    falling = [0.6, 0.6, 0.6 - 1.1 * BY_HAND.falls]
    for seed, accuracies, expected in (
        (held(0.0), FLAT, Op.WAIT),
        (late, FLAT, Op.PRUNE),
        (blending, FLAT, Op.WAIT),
        (blending, falling, Op.PRUNE),
    ):
        row = decide([host([DORMANT, seed, DORMANT], epoch=9, accuracies=accuracies)], [Op.PRUNE])[0]
        assert OPS[row[0]] is expected, (seed, accuracies)


def test_heuristic_advances_a_trained_seed_whatever_its_slot() -> None:
    seed = SeedState(stage="TRAINING", blueprint="gate", stage_epochs=1)
    for slot in range(3):
        seeds = [DORMANT] * 3
        seeds[slot] = seed
        row = decide([host(seeds, epoch=4, accuracies=RISING)], [Op.ADVANCE, Op.PRUNE])[0]
        assert (OPS[row[0]], row[1]) == (Op.ADVANCE, slot)


def test_the_heuristic_grows_within_its_window_and_in_its_own_order() -> None:
    """Each blueprint of the order has its turn, each slot too, from the first epoch of the window on."""
    rules = EAGER.model_copy(update={"first_epoch": 3, "time_needed": 6})
    states = [host([DORMANT] * 3, epoch=epoch, accuracies=RISING) for epoch in range(20)]
    rows = decide(states, [Op.GERMINATE], rules)
    growing = {epoch: row[1:3] for epoch, row in enumerate(rows) if OPS[row[0]] is Op.GERMINATE}
    assert sorted(growing) == list(range(3, 15))
    names = [BLUEPRINTS[blueprint] for _, blueprint in growing.values()]
    assert names == ["gate"] * 5 + ["norm"] * 5 + ["gate"] * 2
    assert [slot for slot, _ in growing.values()] == [0] * 3 + [1] * 3 + [2] * 3 + [0] * 3
    with pytest.raises(ConfigError, match="unheard"):
        decide(states, [Op.GERMINATE], rules.model_copy(update={"blueprints": ["unheard"]}))


def test_without_a_window_the_heuristic_neither_waits_for_a_plateau_nor_blames_a_fall() -> None:
    blind = BY_HAND.model_copy(update={"window": 0})
    falling = [0.6, 0.6, 0.4]
    blending = SeedState(stage="BLENDING", blueprint="dropout", stage_epochs=1, alpha=0.5, contribution=0.0)
    for rules, expected in ((BY_HAND, Op.PRUNE), (blind, Op.WAIT)):
        row = decide([host([DORMANT, blending, DORMANT], epoch=9, accuracies=falling)], [Op.PRUNE], rules)[0]
        assert OPS[row[0]] is expected
    young = [host([DORMANT] * 3, epoch=1, accuracies=[0.3, 0.5])]
    assert [OPS[decide(young, [Op.GERMINATE], rules)[0][0]] for rules in (BY_HAND, blind)] == [Op.WAIT, Op.GERMINATE]


def test_the_heuristics_ramp_is_the_one_of_its_rules() -> None:
    seed = SeedState(stage="TRAINING", blueprint="gate", stage_epochs=1)
    for rules in (BY_HAND, EAGER):
        row = decide([host([seed, DORMANT, DORMANT], epoch=4, accuracies=FLAT)], [Op.ADVANCE], rules)[0]
        assert ALPHA_SPEEDS[row[HEAD_INDEX[Head.ALPHA_SPEED]]] == rules.alpha_speed


def test_l17_the_heuristic_earns_contributions_in_the_same_world_as_everyone() -> None:
    """L17: grown by the shipped engine it is told contributions, keeps seeds by them, and removes others."""
    hosts = identify("benchmark", draw_keys("benchmark", Split.TRAIN, 40, 70_000))
    steps = list(rollout(Ensemble(hosts, WorldConfig()), HeuristicController(BY_HAND).decide, seed=0))
    ops = np.stack([step.decisions.actions[:, 0] for step in steps])
    assert (ops == OP_INDEX[Op.FOSSILIZE]).any(axis=0).sum() > len(hosts) / 4
    assert (ops == OP_INDEX[Op.PRUNE]).any()
    for step in steps:
        rows = np.flatnonzero(step.decisions.actions[:, 0] == OP_INDEX[Op.FOSSILIZE])
        slots = step.observations.slot_ptr[rows] + step.decisions.actions[rows, 1]
        assert (step.observations.slots["contribution"][slots] >= BY_HAND.keep).all()
    assert (steps[-1].outcome.committed_parameters > 0).mean() > 1 / 4


def test_drl06_the_heuristic_grows_real_hosts_in_every_slot() -> None:
    """DRL-06: where the budget allows three seeds, one and the same host keeps seeds in all three slots."""
    hosts = identify("compound", draw_keys("compound", Split.TRAIN, 12, 90_000))
    ensemble = Ensemble(hosts, WorldConfig(set="compound"))
    rows = np.stack([step.decisions.actions for step in rollout(ensemble, HeuristicController(EAGER).decide, seed=0)])
    for op in (Op.GERMINATE, Op.FOSSILIZE):
        used = [set(own[own[:, 0] == OP_INDEX[op], 1].tolist()) for own in rows.transpose(1, 0, 2)]
        assert {0, 1, 2} in used, op
