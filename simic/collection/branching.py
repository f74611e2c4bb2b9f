"""Branches: at chosen decisions of an episode, many other actions are tried on the same host.

A branch repeats an episode, its parent, up to one step, takes another action there, and continues under the same
controller. Hosts and controllers are deterministic, so both episodes share the state of that step and all later random
numbers, and the difference of their returns is due to the action alone: vine rollouts with common random numbers
(Schulman et al. 2015, "Trust Region Policy Optimization", section 5.2).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from simic.contracts.actions import Head, Op
from simic.contracts.batches import HEAD_INDEX, OP_INDEX
from simic.contracts.state import HostIdentity
from simic.controllers.branching import Action, candidate_actions, may_branch
from simic.hosts.rollout import Step
from simic.runtime.seeds import generator

__all__ = ["Branch", "BranchChoice", "choose_branches"]

EARLINESS = 1.5
"""A decision after epoch t is branched with a weight of t ** -EARLINESS: more of the episode depends on early ones."""
FURTHER = 2
"""Largest number of branched decisions of an episode at which a seed began after its first one. What such
a seed is worth changes within an epoch, and weights that favour early steps leave out most of these decisions."""


class Branch(NamedTuple):
    """One branch to grow; plain data for another process."""

    host: HostIdentity
    parent: str
    """Run id of the episode that is repeated up to ``step``."""
    step: int
    action: Action
    """Action taken at ``step``."""


class BranchChoice(NamedTuple):
    """Number of decisions of each episode that are branched, and of actions tried at each."""

    decisions: int
    actions: int
    """Largest number of actions at one decision besides the one that the controller took."""
    seed: int
    since: int = 1
    """Number of epochs that a host has trained before the first decision that is branched."""


def choose_branches(
    steps: Sequence[Step], hosts: Sequence[HostIdentity], run_ids: Sequence[str], choice: BranchChoice
) -> list[Branch]:
    """Return the branches of finished episodes, host by host.

    A decision can be branched if the host has trained an epoch and some operation besides WAIT is legal. The choice
    depends on the host's key, its episode and ``choice`` alone.
    """
    branches = []
    for row, host in enumerate(hosts):
        draw = generator(choice.seed, "branches", host.set, host.key)
        for step in _decisions(steps, row, choice, draw):
            taken = tuple(step.decisions.actions[row].tolist())
            tried = candidate_actions(step.masks, step.observations.slot_ptr, row)
            others = [action for action in tried if action != taken]
            kept = np.sort(draw.permutation(len(others))[: choice.actions])
            branches += [Branch(host, run_ids[row], step.epoch, others[index]) for index in kept.tolist()]
    return branches


def _decisions(steps: Sequence[Step], row: int, choice: BranchChoice, draw: np.random.Generator) -> list[Step]:
    """Return at most ``choice.decisions`` different steps of one episode.

    At least one is drawn, with weights that favour early steps. Those at which a further seed began come before that.
    """
    possible = [step for step in steps if step.live[row] and may_branch(step.epoch, step.masks, row, choice.since)]
    size = min(choice.decisions, len(possible))
    if not size:
        return []
    began = [index for index, step in enumerate(possible) if _begins_seed(step, row)]
    first = began[1:][: min(FURTHER, size - 1)]
    others = np.setdiff1d(np.arange(len(possible)), first)
    weights = np.array([max(possible[index].epoch, 1) ** -EARLINESS for index in others.tolist()])
    drawn = draw.choice(others, size - len(first), replace=False, p=weights / weights.sum())
    return [possible[index] for index in sorted([*first, *drawn.tolist()])]


def _begins_seed(step: Step, row: int) -> bool:
    return bool(step.decisions.actions[row, HEAD_INDEX[Head.OP]] == OP_INDEX[Op.GERMINATE])
