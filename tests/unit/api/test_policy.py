"""A policy asked from outside: it decides as inside, on what is on the wire, and only if its seal is trusted."""

from __future__ import annotations

import itertools
import json
import shutil
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.builders.deciding_policies import SIGNER, decisive, grown, sealed_decider
from support.builders.observations import BLUEPRINTS, make_scene
from support.builders.states import HARDWARE

import simic
from simic.contracts.actions import HEADS, OPS, Head, Op
from simic.contracts.batches import (
    OP_INDEX,
    Decisions,
    Observations,
    action_of,
    log_prob_of,
    masks_of,
    masks_to_columns,
)
from simic.contracts.errors import ConfigError, ContractError, IntegrityError
from simic.runtime.home import Home
from simic.trust.keys import Keyring, Signer
from simic.trust.seal import seal

OTHER = Signer(bytes(range(50, 82)))


class Wire(NamedTuple):
    """What a decision looked like from outside: the JSON of states and masks, and what decided inside."""

    states: list[dict[str, Any]]
    masks: list[dict[str, Any]]
    uniforms: np.ndarray
    inside: Decisions
    exploring: Decisions


class Scripted(np.random.Generator):
    """Gives out rows of numbers that are known."""

    def __init__(self, rows: np.ndarray) -> None:
        super().__init__(np.random.PCG64(0))
        self._rows: Iterator[np.ndarray] = iter(rows)

    def random(self, *_: Any, **__: Any) -> Any:
        return next(self._rows)


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return sealed_decider(tmp_path_factory.mktemp("policies") / "one", germinated=BLUEPRINTS[:3])


@pytest.fixture(scope="module")
def policy(directory: Path) -> simic.Policy:
    return simic.load_policy(directory, trusted_keys=[SIGNER.public_bytes.hex()])


@pytest.fixture(scope="module")
def wire(directory: Path) -> Wire:
    found: dict[str, list[Any]] = {name: [] for name in Wire._fields}
    rng = np.random.default_rng(5)
    for step in grown(directory)[::3]:
        names, live = step.observations.blueprints, np.flatnonzero(step.live)
        uniforms = rng.random((len(step.live), len(HEADS)))
        inside = [
            decisive(directory, is_decisive=how).decide(step.observations, step.masks, uniforms)
            for how in (True, False)
        ]
        states = step.observations.to_states(HARDWARE)
        for row in live.tolist():
            masks = masks_of(step.masks, row, step.observations.slot_ptr, names)
            found["states"].append(json.loads(states[row].model_dump_json()))
            found["masks"].append(json.loads(masks.model_dump_json()))
            found["uniforms"].append(uniforms[row])
            for name, decisions in zip(("inside", "exploring"), inside, strict=True):
                found[name].append((decisions.actions[row], decisions.log_probs[row]))
    columns = {
        name: Decisions(*(np.stack(part) for part in zip(*found[name], strict=True)))
        for name in ("inside", "exploring")
    }
    return Wire(found["states"], found["masks"], np.stack(found["uniforms"]), **columns)


@pytest.mark.parametrize("explore", [False, True])
def test_outside_it_decides_as_the_controller_inside_on_a_grown_host(
    policy: simic.Policy, wire: Wire, explore: bool
) -> None:
    inside = wire.exploring if explore else wire.inside
    found = policy.explain(wire.states, wire.masks, rng=Scripted(wire.uniforms), explore=explore)
    assert [one.action for one in found] == [action_of(row, BLUEPRINTS) for row in inside.actions]
    assert [one.log_prob for one in found] == [log_prob_of(row) for row in inside.log_probs]
    assert len({one.action.op for one in found}) >= 4, "the hosts grew"
    assert policy.decide(wire.states, wire.masks, rng=Scripted(wire.uniforms), explore=explore) == [
        one.action for one in found
    ]


def test_the_probabilities_are_those_with_which_the_controller_inside_acts(
    policy: simic.Policy, wire: Wire, directory: Path
) -> None:
    """A grid of draws of the operation covers each with its share."""
    index = next(i for i, row in enumerate(wire.masks) if sum(row["op"]) >= 3)
    one = policy.explain(wire.states[index], wire.masks[index])
    grid = np.full((4000, len(HEADS)), 0.5)
    grid[:, 0] = (np.arange(4000) + 0.5) / 4000
    state = simic.SystemState.model_validate(wire.states[index])
    masks = masks_to_columns([simic.ActionMasks.model_validate(wire.masks[index])] * 4000, BLUEPRINTS)
    observations = Observations.from_states([state] * 4000, BLUEPRINTS)
    decisions = decisive(directory).decide(observations, masks, grid)
    shares = Counter(action_of(row, BLUEPRINTS).model_dump_json() for row in decisions.actions)
    assert set(shares) <= {other.action.model_dump_json() for other in one.alternatives}
    for other in one.alternatives:
        assert shares[other.action.model_dump_json()] / 4000 == pytest.approx(other.probability, abs=1 / 2000)
    assert sum(other.probability for other in one.alternatives) == pytest.approx(1.0)


def test_the_shares_of_each_head_are_those_of_the_exploring_controller(policy: simic.Policy, wire: Wire) -> None:
    """What was drawn has the log-probability that the table of its head says."""
    for one in policy.explain(wire.states, wire.masks, rng=np.random.default_rng(1), explore=True):
        for head, choices in one.heads.items():
            chosen = getattr(one.action, head.value)
            share = {row.choice: row.probability for row in choices}[getattr(chosen, "value", chosen)]
            assert np.log(share) == pytest.approx(getattr(one.log_prob, head.value), abs=1e-5)
            assert sum(row.probability for row in choices) == pytest.approx(1.0)


def test_the_second_choice_is_the_most_probable_other_operation(policy: simic.Policy, wire: Wire) -> None:
    explained = policy.explain(wire.states, wire.masks)
    for one, masks in zip(explained, wire.masks, strict=True):
        assert [row.probability for row in one.alternatives] == sorted(
            (row.probability for row in one.alternatives), reverse=True
        )
        assert {row.action.op for row in one.alternatives} <= set(itertools.compress(OPS, masks["op"]))
        others = [row for row in one.alternatives if row.action.op is not one.action.op]
        assert one.second == (others[0] if others else None)
    assert any(one.second is not None for one in explained)
    assert len({round(one.value, 6) for one in explained}) > 5


def test_without_a_generator_equal_arguments_give_equal_actions_with_the_same_shares(
    policy: simic.Policy, wire: Wire
) -> None:
    index = next(i for i, row in enumerate(wire.masks) if sum(row["op"]) >= 3)
    state, masks = wire.states[index], wire.masks[index]
    assert policy.decide(state, masks) == policy.decide(state, masks)
    # Columns the network does not read: the draw changes with them, the shares do not.
    others = [{**state, "hardware": {"device": f"cpu:{number}", "threads": 1}} for number in range(2000)]
    drawn = Counter(action.op for action in policy.decide(others, [masks] * 2000))
    for other in policy.explain(state, masks).alternatives:
        assert drawn[other.action.op] / 2000 == pytest.approx(other.probability, abs=0.05)


def test_one_and_many_contracts_and_dicts_are_decided_alike(policy: simic.Policy, wire: Wire) -> None:
    together = policy.decide(wire.states, wire.masks)
    alone = [policy.decide(state, masks) for state, masks in zip(wire.states, wire.masks, strict=True)]
    typed = policy.decide(
        [simic.SystemState.model_validate(state) for state in wire.states],
        [simic.ActionMasks.model_validate(masks) for masks in wire.masks],
    )
    assert together == alone == typed
    assert policy.decide([], []) == [] and policy.explain([], []) == []


def test_threads_decide_as_one_program_in_turn(policy: simic.Policy, wire: Wire) -> None:
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(policy.explain, wire.states * 3, wire.masks * 3))
    assert found == policy.explain(wire.states, wire.masks) * 3


@given(seed=st.integers(0, 2**32 - 1))
def test_it_never_leaves_the_masks(policy: simic.Policy, seed: int) -> None:
    """On hosts of any shape, none without slots left out; a blueprint that it does not know may be legal as well."""
    scene = make_scene(seed, 8, slots=(0, 4))
    ptr = scene.observations.slot_ptr
    masks = [masks_of(scene.masks, row, ptr, BLUEPRINTS) for row in range(8)]
    wider = [one.model_copy(update={"blueprint": [*one.blueprint, "beyond"]}) for one in masks]
    for explore in (False, True):
        for action, legal in zip(policy.decide(scene.states, wider, explore=explore), masks, strict=True):
            assert legal.op[OPS.index(action.op)]
            assert action.slot is None or legal.slot[OPS.index(action.op)][action.slot]
            assert action.blueprint is None or action.blueprint in legal.blueprint


def test_masks_on_the_wire_and_in_columns_are_each_others_inverse(directory: Path) -> None:
    step = grown(directory, range(4))[4]
    ptr, names = step.observations.slot_ptr, step.observations.blueprints
    there = [masks_of(step.masks, row, ptr, names) for row in range(4)]
    back = masks_to_columns(there, names)
    for name in ("op", "slot", "blueprint"):
        assert np.array_equal(getattr(back, name), getattr(step.masks, name))
    assert back.slot.sum() > 0
    with pytest.raises(ContractError, match="unknown blueprints"):
        masks_to_columns(there, ("beyond",))


NONE, ALL = [False] * 6, [True] * 6


@pytest.mark.parametrize(
    ("state", "masks", "message"),
    [
        ({"epoch": -1}, {}, r"state\.epoch: Input should be greater"),
        ({"horizons": 3}, {}, r"state\.horizons: Extra inputs"),
        ({"validation_loss": float("nan")}, {}, r"state\.validation_loss: .*finite"),
        ({"slots": [{"stage": "TRAINING", "blueprint": "own", "stage_epochs": 1}] * 3}, {}, "policy knows blueprints"),
        ({}, {"op": None}, r"available\.op: Input should be a valid array"),
        ({}, {"slot": [ALL]}, r"available\.slot: List should have at least 6"),
        ({}, {"slot": [[]] * 6}, r"the state's 3 slots for each operation, found lists of \[0\].*slot\[operation\]"),
        ({}, {"op": NONE}, "expected a legal operation, found none"),
        ({}, {"op": ALL, "slot": [[False] * 3] * 6}, r"available\.op of GERMINATE: expected false where"),
        ({}, {"op": ALL, "slot": [[True] * 3] * 6, "blueprint": []}, "GERMINATE: expected false without a blueprint"),
        ({"epoch": "2"}, {}, r"state\.epoch: Input should be a valid integer"),
        ({"epoch": True}, {}, r"state\.epoch: Input should be a valid integer"),
        ({"epoch": {1, 2}}, {}, "state: expected what JSON can express"),
        ({}, {"op": ["yes", 0, 0, 0, 0, 0]}, r"available\.op\.0: Input should be a valid boolean"),
    ],
)
def test_what_no_host_can_be_in_is_refused_with_the_reason(
    policy: simic.Policy, wire: Wire, state: dict[str, Any], masks: dict[str, Any], message: str
) -> None:
    assert len(wire.states[0]["slots"]) == 3
    with pytest.raises(ContractError, match=message):
        policy.decide({**wire.states[0], **state}, {**wire.masks[0], **masks})


@pytest.mark.parametrize("blueprint", ["beyond", BLUEPRINTS[3]])
def test_nothing_is_decided_where_only_a_blueprint_that_it_does_not_choose_is_legal(
    policy: simic.Policy, wire: Wire, blueprint: str
) -> None:
    """One blueprint is unknown to the policy, the other was never germinated in its training."""
    op = [one is Op.GERMINATE for one in OPS]
    masks = {"op": op, "slot": [[is_legal] * 3 for is_legal in op], "blueprint": [blueprint]}
    for ask in (policy.decide, policy.explain):
        with pytest.raises(ContractError, match=f"of state 1: .*only GERMINATE .*'{blueprint}'.*offer WAIT"):
            ask([wire.states[0]] * 2, [wire.masks[0], masks])
    waiting = {**masks, "op": [True, *op[1:]]}
    assert policy.decide(wire.states[0], waiting).op is Op.WAIT
    if blueprint in policy.blueprints:
        explored = policy.decide(wire.states[0], masks, explore=True)
        assert (explored.op, explored.blueprint) == (Op.GERMINATE, blueprint), "exploration may germinate any"


def test_one_state_with_many_masks_is_refused(policy: simic.Policy, wire: Wire) -> None:
    with pytest.raises(ContractError, match="one of both kinds"):
        policy.decide(wire.states[0], wire.masks[:1])  # type: ignore[call-overload]
    with pytest.raises(ContractError, match="masks for each of 2 states, found 1"):
        policy.decide(wire.states[:2], wire.masks[:1])


def test_a_directory_is_loaded_only_with_the_key_that_sealed_it(directory: Path, tmp_path: Path) -> None:
    key = SIGNER.public_bytes
    with pytest.raises(ConfigError, match="needs trusted_keys"):
        simic.load_policy(directory)
    for keys in ([OTHER.public_bytes.hex()], tmp_path):
        with pytest.raises(IntegrityError, match=f"key {SIGNER.key_id} is not trusted"):
            simic.load_policy(directory, trusted_keys=keys)
    Keyring(tmp_path / "keys").trust(key)
    for keys in (tmp_path / "keys", str(tmp_path / "keys"), [OTHER.public_bytes.hex(), key.hex()]):
        assert simic.load_policy(str(directory), trusted_keys=keys).blueprints == BLUEPRINTS
    for wrong in (["00"], [key.hex().upper()], tmp_path / "absent", [], ""):
        with pytest.raises(ConfigError, match="trusted_keys: expected"):
            simic.load_policy(directory, trusted_keys=wrong)


def test_a_changed_byte_or_a_seal_of_somebody_else_is_refused(directory: Path, tmp_path: Path) -> None:
    keys = [SIGNER.public_bytes.hex()]
    copied = shutil.copytree(directory, tmp_path / "copy")
    weights = copied / "weights.safetensors"
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1
    weights.write_bytes(content)
    with pytest.raises(IntegrityError, match="differ from what was sealed"):
        simic.load_policy(copied, trusted_keys=keys)
    (copied / "manifest.json").unlink()
    with pytest.raises(IntegrityError, match="not sealed"):
        simic.load_policy(copied, trusted_keys=keys)
    seal(copied, OTHER)
    with pytest.raises(IntegrityError, match="not trusted"):
        simic.load_policy(copied, trusted_keys=keys)
    manifest = copied / "manifest.json"
    manifest.write_text(manifest.read_text().replace(OTHER.key_id, SIGNER.key_id))
    with pytest.raises(IntegrityError, match="does not match what was signed"):
        simic.load_policy(copied, trusted_keys=keys)


def test_a_home_is_asked_by_name_and_trusts_its_own_keys(home: Path, directory: Path, policy: simic.Policy) -> None:
    with pytest.raises(ConfigError, match="no Simic home"):
        simic.load_policy("champion")
    places = Home(home)
    places.create()
    shutil.copytree(directory, places.policies / policy.digest)
    with pytest.raises(IntegrityError, match="not trusted"):
        simic.load_policy(policy.digest[:8])
    Keyring(places.keys).trust(SIGNER.public_bytes)
    opened = simic.Home(home)
    assert opened.public_keys() == [SIGNER.public_bytes.hex()]
    assert simic.load_policy(policy.digest[:8]).digest == policy.digest
    assert simic.load_policy(policy.digest[:8], home=opened).digest == policy.digest
    assert simic.load_policy(directory, trusted_keys=opened).digest == policy.digest
    with pytest.raises(IntegrityError, match="not trusted"):
        simic.load_policy(policy.digest[:8], trusted_keys=[OTHER.public_bytes.hex()])
    for empty in ([], ""):
        with pytest.raises(ConfigError, match=r"trusted_keys: expected .*, found"):
            simic.load_policy(policy.digest[:8], home=opened, trusted_keys=empty)
    with pytest.raises(ConfigError, match="There is no champion"):
        simic.load_policy("champion")
    for unknown in ("champoin", "heuristic"):
        with pytest.raises(ConfigError, match="is not a policy"):
            simic.load_policy(unknown)
    with pytest.raises(ConfigError, match="home is for the name"):
        simic.load_policy(directory, home=opened, trusted_keys=opened)


def test_explore_draws_every_head_and_otherwise_only_the_operation(policy: simic.Policy, wire: Wire) -> None:
    index = next(i for i, row in enumerate(wire.masks) if row["op"][OP_INDEX[Op.GERMINATE]])
    state, masks = wire.states[index], wire.masks[index]
    rng = np.random.default_rng(0)
    drawn = {
        explore: {policy.decide(state, masks, rng=rng, explore=explore) for _ in range(300)}
        for explore in (False, True)
    }
    assert len(drawn[False]) <= len({action.op for action in drawn[False]})
    assert len(drawn[True]) > len(drawn[False])
    assert {action.blueprint for action in drawn[False]} <= {None, *BLUEPRINTS[:3]}, "met in training"


def test_the_explanation_is_json_with_the_heads_that_the_action_uses(policy: simic.Policy, wire: Wire) -> None:
    one = policy.explain(wire.states[0], wire.masks[0])
    assert simic.Explanation.model_validate_json(one.model_dump_json()) == one
    assert one.policy == policy.digest
    assert one.out_of_range is None, "its card does not say what it learned from"
    assert Head.OP in one.heads


def test_an_explanation_names_what_is_unlike_the_training_of_each_state(wire: Wire, tmp_path: Path) -> None:
    states = [simic.SystemState.model_validate(one) for one in wire.states]
    known = Observations.from_states(states[1:], BLUEPRINTS)
    directory = sealed_decider(tmp_path / "policy", learned_from=known)
    policy = simic.load_policy(directory, trusted_keys=[SIGNER.public_bytes.hex()])
    strange = states[1].model_copy(update={"validation_loss": 4321.0})
    found = policy.explain([states[1], strange, states[2]], [wire.masks[1], wire.masks[1], wire.masks[2]])
    assert [len(one.out_of_range or ()) for one in (found[0], found[2])] == [0, 0]
    (one,) = [one for one in found[1].out_of_range or () if one.feature == "validation_loss"]
    assert (one.node, one.value) == ("context", pytest.approx(4321.0, rel=1e-4))
