"""The learned controller: what it reports is what it did, and it can be recomputed from the wire."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from support.builders.action_rows import actions_to_rows
from support.builders.observations import BLUEPRINTS, make_scene

from simic.contracts.actions import OPS, Head
from simic.contracts.batches import HEAD_INDEX, Observations, action_of, log_prob_of
from simic.contracts.controllers import ControllerSpec
from simic.contracts.errors import IntegrityError
from simic.contracts.settings.network import NetworkConfig
from simic.contracts.state import HardwareContext, SystemState
from simic.controllers import heads
from simic.controllers.features import encode
from simic.controllers.learned_controller import LearnedController
from simic.controllers.network import NetworkShape, PolicyNetwork, fit_normaliser
from simic.controllers.plugins.learned import make
from simic.controllers.policy_files import LoadedPolicy, describe, save_policy
from simic.controllers.protocol import ControllerContext, Verified

CONFIG = NetworkConfig(hidden=16, layers=2, exploration=0.03)
BLUEPRINT = HEAD_INDEX[Head.BLUEPRINT]


def make_policy(
    blueprints: tuple[str, ...] = BLUEPRINTS,
    seed: int = 0,
    config: NetworkConfig = CONFIG,
    germinated: tuple[str, ...] | None = None,
) -> LoadedPolicy:
    network = PolicyNetwork(NetworkShape.of(config, blueprints), seed)
    network.set_normaliser(fit_normaliser(encode(make_scene(0, 80).observations), BLUEPRINTS))
    with torch.no_grad():
        for head in (network.op_head, network.slot_head):
            head[-1].weight.mul_(150.0)
    card = describe(
        network, config, set_name="benchmark", snapshot_digest=None, code_version="0.1.0", config_digest="b" * 64,
        germinated=germinated,
    )  # fmt: skip
    return LoadedPolicy(network.eval(), card)


def test_high2_log_probs_can_be_recomputed_from_what_went_over_the_wire() -> None:
    """HIGH-2: states, actions and log-probabilities survive JSON, and the stored row gives the behaviour back."""
    scene, policy = make_scene(61, 200), make_policy()
    controller = LearnedController(policy, policy_version=None, is_decisive=False)
    decisions = controller.decide(scene.observations, scene.masks, scene.uniforms)
    hardware = HardwareContext(device="cpu", threads=1)
    lines = [state.model_dump_json() for state in scene.observations.to_states(hardware)]
    actions = actions_to_rows([action_of(row, BLUEPRINTS) for row in decisions.actions], BLUEPRINTS)
    stored = torch.tensor([log_prob_of(row).joint for row in decisions.log_probs])
    observations = Observations.from_states([SystemState.model_validate_json(line) for line in lines], BLUEPRINTS)
    batch = encode(observations)
    with torch.no_grad():
        output = policy.network(batch)
    available = heads.MaskTensors.of(scene.masks)
    distribution = heads.ActionDistribution(output, batch.slot_ptr, available, CONFIG.exploration)
    found = distribution.log_prob(torch.from_numpy(actions))
    assert len(np.unique(actions[:, 0])) == len(OPS)
    assert float(stored.min()) < -5.0
    assert (found.joint - stored).abs().max() < 1e-5


@pytest.mark.parametrize(("seed", "is_decisive"), [(0, False), (1, False), (2, False), (3, True)])
def test_a_host_is_decided_alike_alone_permuted_and_among_others(seed: int, is_decisive: bool) -> None:
    """Bit for bit, with the network's real width: float32 products of other batch sizes differ in the last digits."""
    config = NetworkConfig(exploration=0.05)
    scene, policy = make_scene(100 + seed, 64), make_policy(seed=seed, config=config)
    controller = LearnedController(policy, policy_version=None, is_decisive=is_decisive)
    together = controller.decide(scene.observations, scene.masks, scene.uniforms)
    order = np.random.default_rng(seed).permutation(64)
    for rows in (*np.arange(0, 64, 5)[:, None], np.arange(5), order[:5], order[:31], order):
        masks = scene.masks.take(rows, scene.observations.slot_ptr)
        found = controller.decide(scene.observations.take(rows), masks, scene.uniforms[rows])
        assert np.array_equal(found.actions, together.actions[rows])
        assert found.log_probs.tobytes() == together.log_probs[rows].tobytes()


def test_a_decisive_policy_leaves_only_the_operation_to_chance() -> None:
    scene, policy = make_scene(62, 50), make_policy()
    decisive = LearnedController(policy, policy_version="0" * 64, is_decisive=True)
    first = decisive.decide(scene.observations, scene.masks, scene.uniforms)
    factors = first.log_probs[:, 1:]
    assert set(factors[~np.isnan(factors)].tolist()) == {0.0}
    same_operation = scene.uniforms.copy()
    same_operation[:, 1:] = 1 - same_operation[:, 1:]
    again = decisive.decide(scene.observations, scene.masks, same_operation)
    assert np.array_equal(first.actions, again.actions)
    sampling = LearnedController(policy, policy_version=None, is_decisive=False)
    rows = [sampling.decide(scene.observations, scene.masks, u).actions for u in (scene.uniforms, scene.uniforms / 2)]
    assert not np.array_equal(*rows)


def test_the_verifier_speaks_first_and_names_the_version(tmp_path: Path) -> None:
    policy = make_policy()
    save_policy(tmp_path / "policy", policy.network, policy.card)
    spec = ControllerSpec(name="learned", policy_path=str(tmp_path / "policy"))
    sealed = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in (tmp_path / "policy").iterdir()}

    def name(path: Path) -> Verified:
        return Verified("a" * 64 if path == tmp_path / "policy" else "", sealed)

    controller = make(ControllerContext(spec, [], name))
    assert controller.policy_version == "a" * 64

    def refuse(_: Path) -> Verified:
        raise IntegrityError("flipped byte")

    (tmp_path / "policy" / "card.json").write_text("not even JSON")
    with pytest.raises(IntegrityError):
        make(ControllerContext(spec, [], refuse))


def test_a_policy_swapped_between_the_check_of_its_seal_and_its_loading_never_acts(tmp_path: Path) -> None:
    folder = tmp_path / "policy"
    policy = make_policy()
    save_policy(folder, policy.network, policy.card)
    spec = ControllerSpec(name="learned", policy_path=str(folder))

    def check_then_swap(path: Path) -> Verified:
        sealed = {one.name: hashlib.sha256(one.read_bytes()).hexdigest() for one in path.iterdir()}
        card = path / "card.json"
        card.write_bytes(card.read_bytes() + b"\n")
        return Verified("a" * 64, sealed)

    with pytest.raises(IntegrityError, match=r"card\.json should have SHA-256"):
        make(ControllerContext(spec, [], check_then_swap))


def test_among_hosts_that_know_more_blueprints_it_decides_the_same() -> None:
    """Installing a blueprint moves indices; it must not move decisions, nor ever be chosen by an older policy."""
    scene, policy = make_scene(63, 120), make_policy()
    more = ("aside", *BLUEPRINTS, "beyond")
    slots, planted = dict(scene.observations.slots), scene.observations.slots["blueprint"]
    slots["blueprint"] = np.where(planted < 0, planted, planted + 1).astype(np.int16)
    observations = replace(scene.observations, slots=slots, blueprints=more)
    masks = replace(scene.masks, blueprint=np.pad(scene.masks.blueprint, ((0, 0), (1, 1)), constant_values=True))
    for is_decisive in (False, True):
        controller = LearnedController(policy, policy_version=None, is_decisive=is_decisive)
        plain = controller.decide(scene.observations, scene.masks, scene.uniforms)
        found = controller.decide(observations, masks, scene.uniforms)
        names = [[all_of[index] if index >= 0 else None for index in actions[:, BLUEPRINT].tolist()]
                 for all_of, actions in ((BLUEPRINTS, plain.actions), (more, found.actions))]  # fmt: skip
        assert names[0] == names[1]
        assert len({*names[0]}) > 2
        others = [column for column in range(7) if column != BLUEPRINT]
        assert np.array_equal(found.actions[:, others], plain.actions[:, others])
        assert found.log_probs.tobytes() == plain.log_probs.tobytes()


def test_deciding_for_good_it_germinates_only_what_its_training_saw() -> None:
    scene = make_scene(64, 300)
    met = BLUEPRINTS[1:3]
    policy = make_policy(germinated=met)

    def grown(*, is_decisive: bool) -> set[str]:
        controller = LearnedController(policy, policy_version=None, is_decisive=is_decisive)
        actions = controller.decide(scene.observations, scene.masks, scene.uniforms).actions
        legal = scene.masks.blueprint[np.arange(300), actions[:, BLUEPRINT]] | (actions[:, BLUEPRINT] < 0)
        assert legal.all()
        return {BLUEPRINTS[index] for index in actions[:, BLUEPRINT].tolist() if index >= 0}

    assert grown(is_decisive=True) == set(met)
    assert not grown(is_decisive=False) <= set(met), "exploring, it may try the rest"
