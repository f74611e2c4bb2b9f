"""Fixed plans: carried out to the letter, refused when they cannot be meant."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest
from support.builders.observations import BLUEPRINTS, make_scene
from support.builders.plan_books import make_book

from simic.contracts.actions import ALPHA_SPEEDS, OPS, TEMPOS, Op
from simic.contracts.batches import OP_INDEX, Masks, Observations
from simic.contracts.controllers import ControllerSpec, HeuristicRules, Plan, PlanBook, PlannedSeed
from simic.contracts.errors import ConfigError, ContractError
from simic.contracts.state import HostIdentity
from simic.controllers import plans
from simic.controllers.factory import make
from simic.controllers.plans import load_plans, plan_path
from simic.controllers.plugins.heuristic import HeuristicController
from simic.controllers.schedule_controller import ScheduleController

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
    with pytest.raises(ContractError, match="2 plans cannot steer 1"):
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
    for name in ("blind", "symptom", "oracle", "expert", "heuristic"):
        with pytest.raises(ConfigError, match=r"simic plans search --set elsewhere"):
            make(ControllerSpec(name=name), [identity("cap", set_name="elsewhere")])
    for name in ("oracle", "expert"):
        with pytest.raises(ConfigError, match=r"families \['gain'\].*simic plans search --set toy"):
            make(ControllerSpec(name=name), [identity("gain")])
    with pytest.raises(ConfigError, match="one set"):
        make(ControllerSpec(name="oracle"), [identity("cap"), identity("cap", set_name="elsewhere")])
    with pytest.raises(ConfigError, match="needs a plan"):
        make(ControllerSpec(name="schedule"), [identity("cap")])
    plan_path("broken").write_text('{"set": "broken"}')
    with pytest.raises(ContractError, match=r"malformed.*simic plans search --set broken"):
        load_plans("broken")
    plan_path("other").write_text(plan_path("toy").read_text())
    with pytest.raises(ContractError, match=r"belongs to set 'toy'.*simic plans search --set other"):
        load_plans("other")


def _folder_with(path: Path, content: bytes | None) -> Path:
    """A home's folder of books with a book of the set ``toy``; none, if there is no content."""
    path.mkdir()
    if content is not None:
        (path / "toy.json").write_bytes(content)
    return path


def test_a_book_of_the_home_comes_before_the_shipped_one(book: PlanBook, tmp_path: Path) -> None:
    """For the rules of the heuristic and for every plan, in whichever process a spec arrives."""
    own_plan = Plan(seeds=[PlannedSeed(epoch=0, slot=0, blueprint="norm")])
    own = make_book(own_plan, {"cap": own_plan})
    own_rules = own.heuristic.model_copy(update={"rules": HeuristicRules(keep=0.02)})
    own = own.model_copy(update={"heuristic": own_rules})
    folder = _folder_with(tmp_path / "plans", own.model_dump_json().encode())
    assert load_plans("toy", folder) == own
    assert load_plans("toy") == book
    hosts = [identity("cap")]
    observations, masks = scene_at(0, {0: Op.GERMINATE})
    for name in ("blind", "oracle", "expert"):
        spec = ControllerSpec.model_validate_json(ControllerSpec(name=name, plans_path=str(folder)).model_dump_json())
        action = make(spec, hosts).decide(observations, masks, UNIFORMS).actions[0].tolist()
        assert (action[0], action[2]) == (OP_INDEX[Op.GERMINATE], BLUEPRINTS.index("norm"))
    heuristic = make(ControllerSpec(name="heuristic", plans_path=str(folder)), hosts)
    assert isinstance(heuristic, HeuristicController)
    assert heuristic.rules == own_rules.rules
    shipped = make(ControllerSpec(name="heuristic"), hosts)
    assert isinstance(shipped, HeuristicController)
    assert shipped.rules == book.heuristic.rules


@pytest.mark.usefixtures("book")
def test_a_home_without_a_book_takes_the_shipped_one(tmp_path: Path, book: PlanBook) -> None:
    assert load_plans("toy", _folder_with(tmp_path / "plans", None)) == book


HOSTILE = {
    "empty": b"",
    "no JSON": b"\x00\xff\xfe",
    "another shape": b'["toy"]',
    "a field missing": b'{"set": "toy"}',
    "nested without end": b"[" * 200_000,
    "not a number": b'{"set": "toy", "horizon": NaN}',
    "another set": b"other set",
    "a blueprint that is no name": b"blueprint",
    "an unknown field": b"unknown field",
}


@pytest.mark.parametrize("content", HOSTILE.values(), ids=HOSTILE.keys())
def test_a_broken_or_hostile_book_of_the_home_is_named_and_never_passed_over(
    book: PlanBook, tmp_path: Path, content: bytes
) -> None:
    """The shipped book does not stand in for it: that would be another judgement without anybody's asking."""
    whole = json.loads(book.model_dump_json())
    changed: dict[bytes, dict[str, object]] = {
        b"other set": {"set": "elsewhere"},
        b"blueprint": {"blind": {"seeds": [{"epoch": 0, "slot": 0, "blueprint": "../../x"}]}},
        b"unknown field": {"run_me": "__import__('os')"},
    }
    content = json.dumps({**whole, **changed[content]}).encode() if content in changed else content
    folder = _folder_with(tmp_path / "plans", content)
    with pytest.raises(ContractError, match=r"plans/toy\.json.*simic plans search --set toy`, or remove the file"):
        load_plans("toy", folder)


@pytest.mark.usefixtures("book")
@pytest.mark.parametrize("kind", ["folder", "pipe", "link to nowhere", "too large"])
def test_what_is_no_plain_file_is_no_book_and_is_not_waited_for(tmp_path: Path, kind: str) -> None:
    folder = tmp_path / "plans"
    folder.mkdir()
    path = folder / "toy.json"
    if kind == "folder":
        path.mkdir()
    elif kind == "pipe":
        os.mkfifo(path)
    elif kind == "link to nowhere":
        path.symlink_to(tmp_path / "nowhere.json")
    else:
        with path.open("wb") as sink:
            sink.truncate(plans.MOST_BYTES + 1)
    with pytest.raises(ContractError, match=r"plans/toy\.json cannot be read"):
        load_plans("toy", folder)
