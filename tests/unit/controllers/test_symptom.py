"""``symptom``: what the tree reads, what it chooses and that the plan chosen is the plan followed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.builders.observations import make_scene
from support.builders.plan_books import fitted_tree, make_book

from simic.contracts.controllers import ControllerSpec, Plan, PlanBook, PlannedSeed, PlanTree, TreeLeaf, TreeSplit
from simic.contracts.errors import ConfigError, ContractError
from simic.contracts.settings.run import WorldConfig
from simic.controllers import plans
from simic.controllers.factory import make
from simic.controllers.features import encode
from simic.controllers.plans import load_plans, plan_path
from simic.controllers.plugins.symptom import SymptomController
from simic.controllers.protocol import Controller
from simic.controllers.schedule_controller import ScheduleController
from simic.controllers.symptoms import choose, symptom_names, symptoms
from simic.hosts.ensemble import Ensemble
from simic.hosts.host_sets import identify
from simic.hosts.rollout import Step, rollout

PLANS = [
    Plan(),
    Plan(seeds=[PlannedSeed(epoch=1, slot=0, blueprint="heavy")]),
    Plan(seeds=[PlannedSeed(epoch=2, slot=1, blueprint="gate", alpha_speed=3)]),
]
WORLD = WorldConfig(horizon=12)
ACCURACY = "context.validation_accuracy"


def split(threshold: float, left: int, right: int, feature: str = ACCURACY) -> TreeSplit:
    return TreeSplit(feature=feature, threshold=threshold, left=left, right=right)


def test_a_row_has_the_features_of_its_host_and_zeros_for_nodes_that_it_lacks() -> None:
    observations = make_scene(3, 2, slots=(1, 4), layers=(2, 6)).observations
    names = symptom_names(observations)
    values = symptoms(observations, names)
    graphs = encode(observations)
    assert (values.shape, values.dtype, np.isfinite(values).all()) == ((2, len(names)), np.float32, True)
    assert len(set(names)) == len(names)
    for host in range(2):
        slots = np.diff(observations.slot_ptr)[host]
        columns = [index for index, name in enumerate(names) if name.startswith(f"slot.{slots}.")]
        assert (values[host, columns] == 0.0).all()
        depth = names.index("layer.1.depth")
        layer = observations.layer_ptr[host] + 1
        expected = graphs.layer_x[layer, list_of("layer").index("depth")].item()
        assert values[host, depth] == expected
        alone = symptoms(observations.take(np.array([host])), names)
        np.testing.assert_array_equal(alone[0], values[host])


def list_of(node: str) -> list[str]:
    from simic.controllers.features import FEATURES

    return list(FEATURES[node])


def test_numbers_that_are_not_finite_read_as_zero_and_the_tree_still_decides() -> None:
    observations = make_scene(0, 2).observations
    observations.system["validation_loss"][:] = np.nan
    tree = PlanTree(nodes=[split(0.0, 1, 2, "context.validation_loss"), *leaves(1, 2)], plans=PLANS)
    assert symptoms(observations, ["context.validation_loss"]).tolist() == [[0.0], [0.0]]
    assert choose(tree, observations).tolist() == [1, 1]


def leaves(*chosen: int) -> list[TreeLeaf]:
    return [TreeLeaf(plan=plan) for plan in chosen]


@pytest.mark.parametrize("name", ["context.unheard", "slot.0.unheard", "layer.0.alpha", "context.alpha"])
def test_an_unknown_feature_is_refused_with_its_name(name: str) -> None:
    tree = PlanTree(nodes=[split(0.0, 1, 2, name), *leaves(0, 1)], plans=PLANS)
    with pytest.raises(ConfigError, match=rf"unknown feature '{name}'.*another version"):
        choose(tree, make_scene(0, 1).observations)


NODES: dict[str, tuple[list[dict[str, Any]], str]] = {
    "a loop": ([{"feature": ACCURACY, "threshold": 0.0, "left": 0, "right": 1}, {"plan": 0}], "children 0 and 1"),
    "back": (
        [
            {"feature": ACCURACY, "threshold": 0.0, "left": 1, "right": 2},
            {"feature": ACCURACY, "threshold": 0.0, "left": 0, "right": 2},
            {"plan": 0},
        ],
        "node 1 has children 0 and 2; expected nodes after it",
    ),
    "no such child": ([{"feature": ACCURACY, "threshold": 0.0, "left": 1, "right": 2}, {"plan": 0}], "below 2"),
    "no such plan": ([{"plan": 3}], "names plan 3, but there are 3 plans"),
    "not finite": ([{"feature": ACCURACY, "threshold": float("inf"), "left": 1, "right": 1}, {"plan": 0}], "finite"),
    "no name": ([{"feature": "__import__('os')", "threshold": 0.0, "left": 1, "right": 1}, {"plan": 0}], "pattern"),
    "empty": ([], "at least 1"),
}


@pytest.mark.parametrize(("nodes", "reason"), NODES.values(), ids=NODES.keys())
def test_a_tree_that_cannot_be_meant_is_refused(nodes: list[dict[str, Any]], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        PlanTree.model_validate({"nodes": nodes, "plans": [plan.model_dump() for plan in PLANS]})
    with pytest.raises(ValueError, match="epoch 0"):
        PlanTree(nodes=leaves(0), plans=[Plan(seeds=[PlannedSeed(epoch=0, slot=0, blueprint="gate")])])


def steps_of(controller: Controller, keys: range) -> list[Step]:
    return list(rollout(Ensemble(identify("benchmark", keys), WORLD), controller.decide, 0))


def test_real_hosts_follow_the_plan_that_the_tree_chose_after_the_first_epoch() -> None:
    keys = range(8)
    first = next(iter(steps_of(ScheduleController("schedule", [Plan()] * 8), keys))).after
    seen = np.sort(symptoms(first, [ACCURACY])[:, 0])
    nodes = [split(float(seen[5]), 1, 4), split(float(seen[2]), 2, 3), *leaves(1, 2, 0)]
    tree = PlanTree(nodes=nodes, plans=PLANS)
    chosen = choose(tree, first).tolist()
    assert sorted(chosen) == [0, 0, 1, 1, 1, 2, 2, 2]
    hosts = identify("benchmark", keys)
    own = steps_of(make(ControllerSpec(name="symptom", tree=tree), hosts), keys)
    planned = steps_of(ScheduleController("schedule", [PLANS[plan] for plan in chosen]), keys)
    for mine, theirs in zip(own, planned, strict=True):
        np.testing.assert_array_equal(mine.decisions.actions, theirs.decisions.actions)
    assert (own[0].decisions.actions[:, 0] == 0).all()
    grown = {name for step in own for name in step.outcome.blueprint_ids if name}
    assert grown == {"heavy", "gate"}


@pytest.fixture
def book(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> PlanBook:
    fitted = fitted_tree([split(0.5, 1, 2), *leaves(0, 2)], PLANS)
    made = make_book(Plan(), {}, set="benchmark").model_copy(update={"symptom": fitted})
    monkeypatch.setattr(plans, "PLANS_DIRECTORY", tmp_path)
    plan_path("benchmark").write_text(made.model_dump_json())
    return made


def test_the_tree_is_read_from_the_book_and_a_book_without_one_says_what_adds_it(book: PlanBook) -> None:
    hosts = identify("benchmark", range(2))
    assert load_plans("benchmark") == book
    assert isinstance(make(ControllerSpec(name="symptom"), hosts), SymptomController)
    content = json.loads(book.model_dump_json())
    content["symptom"]["tree"]["nodes"][0]["left"] = 0
    plan_path("benchmark").write_text(json.dumps(content))
    with pytest.raises(ContractError, match=r"node 0 has children 0 and 2.*simic plans search --set benchmark"):
        load_plans("benchmark")
    del content["symptom"]
    plan_path("benchmark").write_text(json.dumps(content))
    assert load_plans("benchmark").symptom is None
    with pytest.raises(ConfigError, match=r"no tree; run `simic plans search --set benchmark --only symptom`"):
        make(ControllerSpec(name="symptom"), hosts)
