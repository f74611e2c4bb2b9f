"""A policy that consults Karn: only the blueprint is Karn's, and what is reported is what was done."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from support.builders.karns import consulted, loaded_karn
from support.builders.observations import BLUEPRINTS, Scene, make_scene
from unit.controllers.test_learned_controller import BLUEPRINT, CONFIG, make_policy

from simic.contracts.actions import Op
from simic.contracts.batches import OP_INDEX, Decisions
from simic.contracts.errors import ContractError
from simic.contracts.names import consulting_name, is_learned
from simic.contracts.settings.karn import KarnNetworkConfig
from simic.controllers import heads
from simic.controllers.feature_ranges import ranges_of
from simic.controllers.features import encode
from simic.controllers.graph import GraphBatch
from simic.controllers.karn import ConsultedKarn
from simic.controllers.learned_controller import LearnedController

SLOT = 1


def decided(scene: Scene, karn: ConsultedKarn | None, *, is_decisive: bool) -> Decisions:
    controller = LearnedController(make_policy(), policy_version=None, is_decisive=is_decisive, karn=karn)
    return controller.decide(scene.observations, scene.masks, scene.uniforms)


@pytest.mark.parametrize("is_decisive", [False, True])
def test_only_the_blueprint_is_karns(is_decisive: bool) -> None:
    scene = make_scene(61, 300)
    alone, together = (decided(scene, karn, is_decisive=is_decisive) for karn in (None, consulted()))
    others = [head for head in range(alone.actions.shape[1]) if head != BLUEPRINT]
    assert np.array_equal(alone.actions[:, others], together.actions[:, others])
    assert alone.log_probs[:, others].tobytes() == together.log_probs[:, others].tobytes()
    germinates = alone.actions[:, 0] == OP_INDEX[Op.GERMINATE]
    assert (alone.actions[germinates, BLUEPRINT] != together.actions[germinates, BLUEPRINT]).mean() > 0.3
    assert scene.masks.blueprint[np.flatnonzero(germinates), together.actions[germinates, BLUEPRINT]].all()


def test_the_reported_log_prob_is_that_of_karns_softmax_over_the_mask_mixed_with_the_uniform() -> None:
    """The oracle is the formula in float64, row by row."""
    scene, karn = make_scene(62, 400), consulted()
    found = decided(scene, karn, is_decisive=False)
    with torch.no_grad():
        logits = karn.loaded.network.double()(_as_float64(encode(scene.observations))).numpy()
    checked = 0
    for row in np.flatnonzero(found.actions[:, 0] == OP_INDEX[Op.GERMINATE]).tolist():
        own = logits[scene.observations.slot_ptr[row] + found.actions[row, SLOT]]
        legal = scene.masks.blueprint[row]
        weights = np.where(legal, np.exp(own - own[legal].max()), 0.0)
        shares = (1 - CONFIG.exploration) * weights / weights.sum() + CONFIG.exploration * legal / legal.sum()
        expected = np.log(shares[found.actions[row, BLUEPRINT]])
        assert found.log_probs[row, BLUEPRINT] == pytest.approx(expected, abs=1e-5)
        checked += 1
    assert checked > 20


def _as_float64(batch: GraphBatch) -> GraphBatch:
    return batch._replace(
        context_x=batch.context_x.double(), slot_x=batch.slot_x.double(), layer_x=batch.layer_x.double()
    )


def test_a_log_of_it_can_be_evaluated_exactly() -> None:
    """What ``consider`` gives is what ``decide`` drew from, so weights of such a log under itself are 1."""
    scene = make_scene(63, 150)
    controller = LearnedController(make_policy(), policy_version=None, is_decisive=False, karn=consulted())
    decisions = controller.decide(scene.observations, scene.masks, scene.uniforms)
    considered = controller.consider(scene.observations, scene.masks, is_decisive=False)
    again = heads.sampling.joint_log_prob(considered.distribution, decisions.actions.astype(np.int64), is_greedy=False)
    assert np.allclose(again, np.nansum(decisions.log_probs, axis=1), atol=1e-5)


@pytest.mark.parametrize("is_decisive", [False, True])
def test_a_host_is_decided_alike_alone_and_among_others(is_decisive: bool) -> None:
    """Bit for bit: float32 products of other batch sizes differ in the last digits."""
    scene = make_scene(64, 64)
    karn = ConsultedKarn(loaded_karn(config=KarnNetworkConfig()), "c" * 64)
    controller = LearnedController(make_policy(), policy_version=None, is_decisive=is_decisive, karn=karn)
    together = controller.decide(scene.observations, scene.masks, scene.uniforms)
    assert (together.actions[:, 0] == OP_INDEX[Op.GERMINATE]).sum() > 3
    for rows in (*np.arange(64)[:, None], np.arange(5), np.random.default_rng(0).permutation(64)):
        masks = scene.masks.take(rows, scene.observations.slot_ptr)
        found = controller.decide(scene.observations.take(rows), masks, scene.uniforms[rows])
        assert np.array_equal(found.actions, together.actions[rows])
        assert found.log_probs.tobytes() == together.log_probs[rows].tobytes()


def test_its_name_says_which_karn_was_consulted_and_the_version_which_policy_acted() -> None:
    alone = LearnedController(make_policy(), policy_version="a" * 64, is_decisive=True)
    together = LearnedController(make_policy(), policy_version="a" * 64, is_decisive=True, karn=consulted())
    assert (alone.name, together.name) == ("learned", "learned-karn-" + "c" * 16)
    assert alone.policy_version == together.policy_version == "a" * 64
    assert together.name == consulting_name("c" * 64)
    assert is_learned(alone.name) and is_learned(together.name) and not is_learned("learned-otherwise")


def test_deciding_for_good_it_germinates_only_what_both_have_seen() -> None:
    scene = make_scene(65, 300)
    policy = make_policy(germinated=BLUEPRINTS[1:5])
    karn = consulted(germinated=BLUEPRINTS[3:])

    def grown(*, is_decisive: bool) -> set[str]:
        controller = LearnedController(policy, policy_version=None, is_decisive=is_decisive, karn=karn)
        actions = controller.decide(scene.observations, scene.masks, scene.uniforms).actions
        return {BLUEPRINTS[index] for index in actions[:, BLUEPRINT].tolist() if index >= 0}

    assert grown(is_decisive=True) == set(BLUEPRINTS[3:5])
    assert not grown(is_decisive=False) <= set(BLUEPRINTS[3:5]), "exploring, it may try the rest"


def test_a_karn_of_other_blueprints_is_refused() -> None:
    other = ConsultedKarn(loaded_karn(), "c" * 64)
    swapped = other.loaded.card.model_copy(update={"blueprints": list(BLUEPRINTS[::-1])})
    with pytest.raises(ContractError, match="train Karn where these blueprints are installed"):
        LearnedController(
            make_policy(), policy_version=None, is_decisive=True, karn=ConsultedKarn(
                other.loaded._replace(card=swapped), "c" * 64
            ),
        )  # fmt: skip


def test_a_state_outside_the_data_of_either_is_out_of_range() -> None:
    scene = make_scene(66, 40)
    graph = encode(scene.observations)
    wide, policy, karn = ranges_of(graph, BLUEPRINTS), make_policy(), consulted()
    card = policy.card.model_copy(update={"feature_ranges": wide})
    narrow = {node: [None] * len(ranges) for node, ranges in wide.items()}
    known = karn.loaded.card.model_copy(update={"feature_ranges": narrow})
    one = scene.observations.take(np.array([0]))
    alone = LearnedController(policy._replace(card=card), policy_version=None, is_decisive=True)
    assert alone.out_of_range(one) == []
    together = LearnedController(
        policy._replace(card=card), policy_version=None, is_decisive=True,
        karn=karn._replace(loaded=karn.loaded._replace(card=known)),
    )  # fmt: skip
    assert together.out_of_range(one)
    assert sum(together.tensor_bytes()) > sum(alone.tensor_bytes())
