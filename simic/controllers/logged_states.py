"""What a controller would do in states that were logged under another one.

Shapes: N steps, E episodes, C candidate actions of a step, A heads.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from simic.contracts.actions import HEADS, OPS
from simic.contracts.batches import Masks, Observations
from simic.contracts.errors import ConfigError
from simic.controllers.learned_controller import LearnedController
from simic.controllers.protocol import Controller
from simic.controllers.sampling import greedy_after, joint_log_prob, sample_after

__all__ = ["TargetActions", "actions_of_policy", "actions_of_rules"]

_ROWS = 1024
"""Number of states that a policy reads at once."""
_DRAWS = 4
"""Number of draws of the other heads per operation, for a policy that explores."""


class TargetActions(NamedTuple):
    """A controller's distribution over actions in N logged states."""

    log_probs: NDArray[np.float64]
    """[N]: joint log-probability of the logged action; -inf if the controller never takes it."""
    candidates: NDArray[np.int64]
    """[N, C, A]: actions of the controller, -1 where irrelevant."""
    shares: NDArray[np.float64]
    """[N, C]: their probabilities, which sum to 1. A policy that explores has some draws per operation instead of all
    actions: means over the candidates have the right expectation then."""


def actions_of_policy(
    controller: LearnedController,
    observations: Observations,
    masks: Masks,
    actions: NDArray[np.int64],
    *,
    is_decisive: bool,
    seed: int,
) -> TargetActions:
    """Return what a policy would do in ``observations`` [N], where ``actions`` [N, A] were taken.

    ``is_decisive`` as in trials: the operation is drawn without exploration, every other head takes its likeliest
    choice. Otherwise all heads are drawn, with exploration.
    """
    generator, parts = np.random.default_rng(seed), []
    for rows in np.array_split(np.arange(len(actions)), max(1, -(-len(actions) // _ROWS))):
        own = masks.take(rows, observations.slot_ptr)
        considered = controller.consider(observations.take(rows), own, is_decisive=is_decisive)
        mapped, is_known = considered.mapping.actions_to_policy(actions[rows])
        log_probs = joint_log_prob(considered.distribution, mapped, is_greedy=is_decisive)
        ops, chosen = considered.distribution.ops(), []
        for index in range(len(OPS)):
            fixed = np.full(len(rows), index, dtype=np.int64)
            for _ in range(1 if is_decisive else _DRAWS):
                uniforms = generator.random((len(rows), len(HEADS)))
                decisions = (
                    greedy_after(considered.distribution, fixed)
                    if is_decisive
                    else sample_after(considered.distribution, fixed, uniforms)
                )
                chosen.append(considered.mapping.to_host(decisions).actions.astype(np.int64))
        draws = len(chosen) // len(OPS)
        shares = np.repeat(ops, draws, axis=1) / draws
        parts.append(TargetActions(np.where(is_known, log_probs, -np.inf), np.stack(chosen, axis=1), shares))
    return TargetActions(*(np.concatenate(columns) for columns in zip(*parts, strict=True)))


def actions_of_rules(
    controller: Controller,
    observations: Observations,
    masks: Masks,
    actions: NDArray[np.int64],
    starts: NDArray[np.int64],
    lengths: NDArray[np.int64],
) -> TargetActions:
    """Return what a deterministic controller would do; the steps of episode e are ``starts[e]`` and those that follow.

    The controller sees all episodes step by step, as when it acts, because it may remember what it observed.

    Raises:
        ConfigError: if the controller draws its actions and does not say from what.
    """
    chosen = np.full_like(actions, -1)
    for step in range(int(lengths.max(initial=0))):
        rows = starts + np.minimum(step, lengths - 1)  # an ended episode shows its last state; the answer is not used
        decisions = controller.decide(
            observations.take(rows), masks.take(rows, observations.slot_ptr), np.full((len(rows), len(HEADS)), 0.5)
        )
        if (np.nan_to_num(decisions.log_probs) != 0.0).any():
            raise ConfigError(
                f"controller {controller.name!r} draws its actions at random; only policies and controllers with fixed "
                "rules can be evaluated on a log, such as wait, heuristic, blind, symptom and oracle"
            )
        live = step < lengths
        chosen[rows[live]] = decisions.actions[live]
    is_same = (chosen == actions).all(axis=1)
    return TargetActions(np.where(is_same, 0.0, -np.inf), chosen[:, None], np.ones((len(actions), 1)))
