"""Other actions at one decision of an episode: what is tried, and the controller that takes one of them.

Shapes: N hosts, A heads.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from simic.contracts.actions import ALPHA_CURVES, ALPHA_SPEEDS, ALPHA_TARGETS, HEADS, TEMPOS, AlphaCurve, Head, Op
from simic.contracts.batches import HEAD_INDEX, OP_INDEX, Decisions, Masks, Observations
from simic.controllers.protocol import Controller
from simic.controllers.sampling import deterministic

__all__ = ["Action", "BranchingController", "candidate_actions", "may_branch"]

SPEEDS_TRIED = (0, 3)
"""Ramps in epochs that are tried for ADVANCE."""

Action = tuple[int, ...]
"""[A]: indices in the order of ``HEADS``, -1 where irrelevant."""


class BranchingController:
    """Follows a controller, except that each host takes an action of its own at a step of its own."""

    def __init__(self, controller: Controller, steps: Sequence[int], actions: Sequence[Action]) -> None:
        """Take ``actions`` [N] at ``steps`` [N], counted in trained epochs, and follow ``controller`` at all others."""
        self.name, self.policy_version = controller.name, controller.policy_version
        self._controller = controller
        self._steps: NDArray[np.int64] = np.array(steps, dtype=np.int64)
        self._enumerated = deterministic(np.array(actions, dtype=np.int16))

    def decide(self, observations: Observations, masks: Masks, uniforms: NDArray[np.float64]) -> Decisions:
        """Return one action per host; an enumerated one has log-probability 0, because nothing was drawn."""
        own, here = self._controller.decide(observations, masks, uniforms), observations.system["epoch"] == self._steps
        now = here[:, None]
        return Decisions(
            np.where(now, self._enumerated.actions, own.actions),
            np.where(now, self._enumerated.log_probs, own.log_probs),
        )


def may_branch(epoch: int, masks: Masks, row: int, since: int = 1) -> bool:
    """Return whether the decision of host ``row`` after ``epoch`` epochs can be branched.

    The host has trained ``since`` epochs, and some operation besides WAIT is legal.
    """
    return epoch >= since and bool(masks.op[row, 1:].any())


def candidate_actions(masks: Masks, slot_ptr: NDArray[np.int64], row: int) -> Iterator[Action]:
    """Yield the actions to try: each legal operation but SET_ALPHA_TARGET on each slot, with few factors."""
    legal = masks.slot[slot_ptr[row] : slot_ptr[row + 1]]
    yield _action(Op.WAIT)
    for slot in np.flatnonzero(legal[:, OP_INDEX[Op.ADVANCE]]).tolist():
        for speed in SPEEDS_TRIED:
            yield _action(Op.ADVANCE, slot, {**_FULL_ALPHA, Head.ALPHA_SPEED: ALPHA_SPEEDS.index(speed)})
    for op in (Op.FOSSILIZE, Op.PRUNE):
        for slot in np.flatnonzero(legal[:, OP_INDEX[op]]).tolist():
            yield _action(op, slot)
    for slot in np.flatnonzero(legal[:, OP_INDEX[Op.GERMINATE]]).tolist():
        for blueprint in np.flatnonzero(masks.blueprint[row]).tolist():
            yield _action(Op.GERMINATE, slot, {Head.BLUEPRINT: blueprint, Head.TEMPO: _SHORTEST_TEMPO})


_FULL_ALPHA = {Head.ALPHA_TARGET: ALPHA_TARGETS.index(1.0), Head.ALPHA_CURVE: ALPHA_CURVES.index(AlphaCurve.LINEAR)}
_SHORTEST_TEMPO = TEMPOS.index(min(TEMPOS))


def _action(op: Op, slot: int = -1, factors: dict[Head, int] | None = None) -> Action:
    row = [-1] * len(HEADS)
    row[HEAD_INDEX[Head.OP]], row[HEAD_INDEX[Head.SLOT]] = OP_INDEX[op], slot
    for head, choice in (factors or {}).items():
        row[HEAD_INDEX[head]] = choice
    return tuple(row)
