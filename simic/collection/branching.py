"""Branches: at chosen decisions of an episode, many other actions are tried on the same host.

A branch repeats an episode, its parent, up to one step, takes another action there, and continues under the same
controller. Hosts and controllers are deterministic, so both episodes share the state of that step and all later random
numbers, and the difference of their returns is due to the action alone: vine rollouts with common random numbers
(Schulman et al. 2015, "Trust Region Policy Optimization", section 5.2).

Shapes: N hosts, A heads.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from simic.contracts.actions import ALPHA_CURVES, ALPHA_SPEEDS, ALPHA_TARGETS, HEADS, TEMPOS, AlphaCurve, Head, Op
from simic.contracts.batches import HEAD_INDEX, OP_INDEX, Decisions, Masks, Observations
from simic.contracts.state import HostIdentity
from simic.controllers.protocol import Controller
from simic.controllers.sampling import deterministic
from simic.hosts.rollout import Step
from simic.runtime.seeds import generator

__all__ = ["Branch", "BranchChoice", "BranchingController", "choose_branches"]

EARLINESS = 1.5
"""A decision after epoch t is branched with a weight of t ** -EARLINESS: more of the episode depends on early ones."""
SPEEDS_TRIED = (0, 3)
"""Ramps in epochs that are tried for ADVANCE."""

Action = tuple[int, ...]
"""[A]: indices in the order of ``HEADS``, -1 where irrelevant."""


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


class BranchingController:
    """Follows a controller, except that each host takes the action of its branch at the step of its branch."""

    def __init__(self, controller: Controller, branches: Sequence[Branch]) -> None:
        self.name, self.policy_version = controller.name, controller.policy_version
        self._controller = controller
        self._steps: NDArray[np.int64] = np.array([branch.step for branch in branches], dtype=np.int64)
        self._enumerated = deterministic(np.array([branch.action for branch in branches], dtype=np.int16))

    def decide(self, observations: Observations, masks: Masks, uniforms: NDArray[np.float64]) -> Decisions:
        """Return one action per host; an enumerated one has log-probability 0, because nothing was drawn."""
        own, here = self._controller.decide(observations, masks, uniforms), observations.system["epoch"] == self._steps
        now = here[:, None]
        return Decisions(
            np.where(now, self._enumerated.actions, own.actions),
            np.where(now, self._enumerated.log_probs, own.log_probs),
        )


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
        for step in _decisions(steps, row, choice.decisions, draw):
            taken = tuple(step.decisions.actions[row].tolist())
            others = [action for action in _candidates(step, row) if action != taken]
            kept = np.sort(draw.permutation(len(others))[: choice.actions])
            branches += [Branch(host, run_ids[row], step.epoch, others[index]) for index in kept.tolist()]
    return branches


def _decisions(steps: Sequence[Step], row: int, count: int, draw: np.random.Generator) -> list[Step]:
    """Return at most ``count`` different steps of one episode, drawn with weights that favour early ones."""
    possible = [step for step in steps if step.epoch and step.live[row] and step.masks.op[row, 1:].any()]
    weights = np.array([step.epoch**-EARLINESS for step in possible])
    size = min(count, len(possible))
    if not size:
        return []
    chosen = draw.choice(len(possible), size, replace=False, p=weights / weights.sum())
    return [possible[index] for index in np.sort(chosen).tolist()]


def _candidates(step: Step, row: int) -> Iterator[Action]:
    """Yield the actions to try: each legal operation but SET_ALPHA_TARGET on each slot, with few factors."""
    ptr = step.observations.slot_ptr
    legal = step.masks.slot[ptr[row] : ptr[row + 1]]
    yield _action(Op.WAIT)
    for slot in np.flatnonzero(legal[:, OP_INDEX[Op.ADVANCE]]).tolist():
        for speed in SPEEDS_TRIED:
            yield _action(Op.ADVANCE, slot, {**_FULL_ALPHA, Head.ALPHA_SPEED: ALPHA_SPEEDS.index(speed)})
    for op in (Op.FOSSILIZE, Op.PRUNE):
        for slot in np.flatnonzero(legal[:, OP_INDEX[op]]).tolist():
            yield _action(op, slot)
    for slot in np.flatnonzero(legal[:, OP_INDEX[Op.GERMINATE]]).tolist():
        for blueprint in np.flatnonzero(step.masks.blueprint[row]).tolist():
            yield _action(Op.GERMINATE, slot, {Head.BLUEPRINT: blueprint, Head.TEMPO: _SHORTEST_TEMPO})


_FULL_ALPHA = {Head.ALPHA_TARGET: ALPHA_TARGETS.index(1.0), Head.ALPHA_CURVE: ALPHA_CURVES.index(AlphaCurve.LINEAR)}
_SHORTEST_TEMPO = TEMPOS.index(min(TEMPOS))


def _action(op: Op, slot: int = -1, factors: dict[Head, int] | None = None) -> Action:
    row = [-1] * len(HEADS)
    row[HEAD_INDEX[Head.OP]], row[HEAD_INDEX[Head.SLOT]] = OP_INDEX[op], slot
    for head, choice in (factors or {}).items():
        row[HEAD_INDEX[head]] = choice
    return tuple(row)
