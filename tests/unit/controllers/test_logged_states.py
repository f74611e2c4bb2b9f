"""What a controller would do in logged states: exactly what it does when it acts."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from support.builders.deciding_policies import decisive, grown, sealed_decider

from simic.contracts.actions import HEADS, OPS
from simic.contracts.batches import OP_INDEX, Masks, Observations, relevance
from simic.contracts.controllers import HeuristicRules
from simic.contracts.errors import ConfigError
from simic.controllers.logged_states import actions_of_policy, actions_of_rules
from simic.controllers.plugins.explore import ExploreController
from simic.controllers.plugins.heuristic import HeuristicController
from simic.controllers.plugins.wait import WaitController

HOSTS, STEPS = 4, 8


@pytest.fixture(scope="module")
def policy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return sealed_decider(tmp_path_factory.mktemp("p") / "policy")


@pytest.fixture(scope="module")
def logged(policy: Path) -> tuple[Observations, Masks, np.ndarray, np.ndarray]:
    """States, masks, actions and joint log-probabilities of an exploring log, step by step."""
    steps = grown(policy, range(HOSTS))[:STEPS]
    masks = Masks(*(np.concatenate([getattr(s.masks, name) for s in steps]) for name in ("op", "slot", "blueprint")))
    joint = np.nansum(np.concatenate([s.decisions.log_probs for s in steps]).astype(float), axis=1)
    actions = np.concatenate([s.decisions.actions for s in steps]).astype(np.int64)
    return Observations.join([s.observations for s in steps]), masks, actions, joint


def test_the_log_probability_of_its_own_log_is_the_reported_one(policy: Path, logged: tuple) -> None:
    observations, masks, actions, joint = logged
    found = actions_of_policy(decisive(policy), observations, masks, actions, is_decisive=False, seed=0)
    np.testing.assert_allclose(found.log_probs, joint, atol=1e-5)
    np.testing.assert_allclose(found.shares.sum(axis=1), 1.0)
    assert ((found.candidates >= 0) == relevance(found.candidates[:, :, 0])).all()


def test_a_decisive_policy_takes_only_its_likeliest_choices(policy: Path, logged: tuple) -> None:
    observations, masks, actions, _ = logged
    controller = decisive(policy)
    own = controller.decide(observations, masks, np.random.default_rng(1).random((len(actions), len(HEADS))))
    found = actions_of_policy(controller, observations, masks, own.actions.astype(np.int64), is_decisive=True, seed=0)
    np.testing.assert_allclose(found.log_probs, np.nansum(own.log_probs.astype(float), axis=1), atol=1e-6)
    assert found.candidates.shape == (len(actions), len(OPS), len(HEADS))
    row = np.arange(len(actions))
    np.testing.assert_array_equal(found.candidates[row, own.actions[:, 0]], own.actions)
    other = own.actions.astype(np.int64)
    germinates = other[:, 0] != OP_INDEX[OPS[0]]
    other[germinates, 1] += 1
    moved = actions_of_policy(controller, observations, masks, other, is_decisive=True, seed=0)
    assert np.isneginf(moved.log_probs[germinates]).all()
    assert germinates.any()


def test_rules_take_one_action_and_those_that_draw_are_refused(logged: tuple) -> None:
    observations, masks, actions, _ = logged
    starts, lengths = np.arange(HOSTS), np.full(HOSTS, 1)
    first = observations.take(starts), masks.take(starts, observations.slot_ptr), actions[:HOSTS]
    waits = actions_of_rules(WaitController(), *first, starts, lengths)
    np.testing.assert_array_equal(np.isfinite(waits.log_probs), actions[:HOSTS, 0] == OP_INDEX[OPS[0]])
    assert waits.candidates.shape == (HOSTS, 1, len(HEADS))
    with pytest.raises(ConfigError, match="draws its actions"):
        actions_of_rules(ExploreController(), observations, masks, actions, starts + 3 * HOSTS, lengths)


def test_rules_see_the_episodes_step_by_step(logged: tuple) -> None:
    """The log is stored host after host here, and of different lengths."""
    observations, masks, actions, _ = logged
    lengths = np.array([8, 3, 5, 8])
    rows = np.concatenate([np.arange(length) * HOSTS + host for host, length in enumerate(lengths)])
    starts = np.concatenate([[0], np.cumsum(lengths)[:-1]])
    own = observations.take(rows), masks.take(rows, observations.slot_ptr), actions[rows]
    controller = HeuristicController(HeuristicRules())
    found = actions_of_rules(controller, *own, starts, lengths)
    at_once = controller.decide(own[0], own[1], np.zeros((len(rows), len(HEADS)))).actions
    np.testing.assert_array_equal(found.candidates[:, 0], at_once)
