"""Fixed plans: carried out to the letter, refused when they cannot be meant."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from support.books import make_book
from support.scenes import BLUEPRINTS, make_scene

from simic.contracts.actions import ALPHA_SPEEDS, OPS, TEMPOS, Op
from simic.contracts.batches import OP_INDEX, Masks, Observations
from simic.contracts.controllers import ControllerSpec, HeuristicRules, Plan, PlanBook, PlannedSeed
from simic.contracts.errors import ConfigError, ContractViolation
from simic.contracts.state import HostIdentity
from simic.controllers import plans
from simic.controllers.catalogue import make
from simic.controllers.heuristic import HeuristicController
from simic.controllers.plans import load_plans, plan_path
from simic.controllers.schedule import ScheduleController

UNIFORMS = np.zeros((1, 7))


def scene_at(epoch: int, legal: dict[int, Op] | None = None) -> tuple[Observations, Masks]:
    """One host with three slots at ``epoch``; ``legal`` says which operation each slot allows."""
    base = make_scene(0, 1, slots=(3, 4), layers=(4, 5)).observations
    observations = Observations(**{**vars(base), "system": {**base.system, "epoch": np.array([epoch], np.int32)}})
    slot = np.zeros((3, len(OPS)), dtype=bool)
    for index, op in (legal or {}).items():
        slot[index, OP_INDEX[op]] = True
    op_mask = slot.any(0, keepdims=True)
    op_mask[0, 0] = True
    return observations, Masks(op_mask, slot, np.ones((1, len(BLUEPRINTS)), dtype=bool))


def act(plan: Plan, epoch: int, legal: dict[int, Op]) -> tuple[Op, int, list[int]]:
    row = ScheduleController("schedule", [plan]).decide(*scene_at(epoch, legal), UNIFORMS).actions[0].tolist()
    return OPS[row[0]], row[1], row


def test_a_plan_is_followed_step_by_step() -> None:
    plan = Plan(seeds=[PlannedSeed(epoch=2, slot=1, blueprint="norm", tempo=5, alpha_speed=8)])
    everywhere = dict.fromkeys(range(3), Op.GERMINATE)
    assert act(plan, 1, everywhere)[0] is Op.WAIT
    op, slot, row = act(plan, 2, everywhere)
    assert (op, slot, BLUEPRINTS[row[2]], TEMPOS[row[6]]) == (Op.GERMINATE, 1, "norm", 5)
    assert act(plan, 3, everywhere)[0] is Op.WAIT
    op, slot, row = act(plan, 5, {1: Op.ADVANCE})
    assert (op, slot, ALPHA_SPEEDS[row[4]]) == (Op.ADVANCE, 1, 8)
    assert act(plan, 9, {1: Op.FOSSILIZE})[:2] == (Op.FOSSILIZE, 1)
    assert act(plan, 9, {1: Op.PRUNE})[0] is Op.WAIT
    assert act(plan, 9, {2: Op.FOSSILIZE})[0] is Op.WAIT
    assert act(plan, 2, {0: Op.GERMINATE})[0] is Op.WAIT


def test_a_seed_that_is_due_goes_before_what_can_wait_an_epoch() -> None:
    """A germination has one epoch only, so a plan of two seeds does not lose the second to the first one's ramp."""
    seeds = [PlannedSeed(epoch=0, slot=0, blueprint="gate"), PlannedSeed(epoch=2, slot=2, blueprint="norm")]
    plan = Plan(seeds=seeds)
    assert act(plan, 2, {0: Op.ADVANCE, 2: Op.GERMINATE})[:2] == (Op.GERMINATE, 2)
    assert act(plan, 3, {0: Op.ADVANCE, 2: Op.GERMINATE})[:2] == (Op.ADVANCE, 0)


def test_an_empty_plan_waits() -> None:
    assert act(Plan(), 0, {0: Op.GERMINATE})[0] is Op.WAIT


def test_a_plan_that_cannot_be_meant_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"0\.6"):
        ScheduleController("schedule", [Plan(seeds=[PlannedSeed(epoch=0, slot=0, blueprint="gate", alpha_target=0.6)])])
    with pytest.raises(ConfigError, match="unheard"):
        act(Plan(seeds=[PlannedSeed(epoch=0, slot=0, blueprint="unheard")]), 0, {0: Op.GERMINATE})
    with pytest.raises(ContractViolation, match="2 plans cannot steer 1"):
        ScheduleController("schedule", [Plan(), Plan()]).decide(*scene_at(0), UNIFORMS)


def identity(family: str, key: int = 0, set_name: str = "toy") -> HostIdentity:
    return HostIdentity(set=set_name, family=family, key=key)


@pytest.fixture
def book(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> PlanBook:
    def plan(blueprint: str) -> Plan:
        return Plan(seeds=[PlannedSeed(epoch=0, slot=0, blueprint=blueprint)])

    made = make_book(plan("gate"), {"cap": plan("heavy"), "fine": Plan()})
    monkeypatch.setattr(plans, "PLANS_DIRECTORY", tmp_path)
    plan_path("toy").write_text(made.model_dump_json())
    return made


@pytest.mark.usefixtures("book")
def test_blind_treats_all_hosts_alike_and_the_oracle_knows_their_family() -> None:
    hosts = [identity("cap"), identity("fine", 1)]
    observations, masks = scene_at(0, {0: Op.GERMINATE})
    two = observations.take(np.array([0, 0]))
    both = masks.take(np.array([0, 0]), observations.slot_ptr)
    chosen = {
        name: make(ControllerSpec(name=name), hosts).decide(two, both, np.zeros((2, 7))).actions[:, [0, 2]].tolist()
        for name in ("blind", "oracle")
    }
    germinate, gate, heavy = OP_INDEX[Op.GERMINATE], BLUEPRINTS.index("gate"), BLUEPRINTS.index("heavy")
    assert chosen == {"blind": [[germinate, gate]] * 2, "oracle": [[germinate, heavy], [0, -1]]}


def test_the_heuristic_takes_the_rules_of_its_spec_or_of_the_book(book: PlanBook) -> None:
    """No rules of one set serve hosts of another, and what a spec carries needs no book."""
    by_hand = HeuristicRules()
    found = make(ControllerSpec(name="heuristic"), [identity("cap"), identity("fine", 1)])
    given = make(ControllerSpec(name="heuristic", rules=by_hand), [identity("cap", set_name="elsewhere")])
    assert isinstance(found, HeuristicController)
    assert isinstance(given, HeuristicController)
    assert (found.rules, given.rules) == (book.heuristic.rules, by_hand)
    assert found.rules != by_hand
    with pytest.raises(ConfigError, match="one set"):
        make(ControllerSpec(name="heuristic"), [identity("cap"), identity("cap", set_name="elsewhere")])


@pytest.mark.usefixtures("book")
def test_missing_plans_say_how_to_make_them() -> None:
    for name in ("blind", "oracle", "expert", "heuristic"):
        with pytest.raises(ConfigError, match=r"simic plans search --set elsewhere --out .*elsewhere\.json"):
            make(ControllerSpec(name=name), [identity("cap", set_name="elsewhere")])
    for name in ("oracle", "expert"):
        with pytest.raises(ConfigError, match=r"families \['gain'\].*simic plans search --set toy"):
            make(ControllerSpec(name=name), [identity("gain")])
    with pytest.raises(ConfigError, match="one set"):
        make(ControllerSpec(name="oracle"), [identity("cap"), identity("cap", set_name="elsewhere")])
    with pytest.raises(ConfigError, match="needs a plan"):
        make(ControllerSpec(name="schedule"), [identity("cap")])
    plan_path("broken").write_text('{"set": "broken"}')
    with pytest.raises(ContractViolation, match=r"malformed.*simic plans search --set broken"):
        load_plans("broken")
    plan_path("other").write_text(plan_path("toy").read_text())
    with pytest.raises(ContractViolation, match=r"belongs to set 'toy'.*simic plans search --set other"):
        load_plans("other")
