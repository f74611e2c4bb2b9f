"""``mask_respect``: no mask makes the candidate act against it, however little it allows."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import numpy as np
from numpy.typing import NDArray

from simic.contracts.actions import OPS, RELEVANT_HEADS, Head, Op
from simic.contracts.batches import OP_INDEX, Masks
from simic.contracts.results.gate import Criterion, Probe
from simic.controllers.learned_controller import LearnedController
from simic.validation.criterion import Case
from simic.validation.probing import States, Subject, count_failures, faulty, none_fail, states_of

__all__ = ["NAME", "ORDER", "SUMMARY", "judge", "measure"]

NAME = "mask_respect"
SUMMARY = "decisions against masks that allow one operation, one slot or one blueprint, or contradict each other: none"
ORDER = 520


def measure(subject: Subject) -> Probe:
    """Count illegal decisions, decisive and exploring, under adversarial masks."""
    states = states_of(subject)
    return count_failures(
        case for is_decisive in (True, False) for case in _cases(subject.policy(is_decisive=is_decisive), states)
    )


def judge(case: Case) -> Iterator[Criterion]:
    """Yield the criterion."""
    yield none_fail(case, NAME, "illegal decisions under adversarial masks")


def _cases(policy: LearnedController, states: States) -> Iterator[tuple[str, int, Callable[[], NDArray[np.bool_]]]]:
    for op in OPS:
        masks = [("only WAIT or", _narrow(states, op))]
        if op is Op.WAIT or Head.SLOT in RELEVANT_HEADS[op]:
            masks += [("a slot is missing for", _contradicting(states, op, Head.SLOT))]
        if Head.BLUEPRINT in RELEVANT_HEADS[op]:
            masks += [("a blueprint is missing for", _contradicting(states, op, Head.BLUEPRINT))]
        for what, mask in masks:
            yield f"{what} {op.value}", len(states.uniforms), partial(_illegal, policy, states._replace(masks=mask))


def _illegal(policy: LearnedController, states: States) -> NDArray[np.bool_]:
    # The last uniform is the one that prefers the operation over WAIT, which comes first.
    uniforms = np.where(np.arange(len(states.uniforms))[:, None] % 2, 1.0 - 1e-9, states.uniforms)
    return faulty(policy.decide(states.observations, states.masks, uniforms), states)


def _narrow(states: States, op: Op) -> Masks:
    """Allow WAIT and one operation, at the last slot of each host, with one blueprint."""
    ptr, index = states.observations.slot_ptr, OP_INDEX[op]
    masks = _only(states, op)
    last = np.zeros(len(masks.slot), dtype=np.bool_)
    last[ptr[1:] - 1] = True
    masks.slot[:, index] &= last
    masks.blueprint[:] = False
    masks.blueprint[np.arange(len(masks.op)), np.arange(len(masks.op)) % masks.blueprint.shape[1]] = True
    return masks


def _contradicting(states: States, op: Op, head: Head) -> Masks:
    """Allow WAIT and one operation, but none of the choices of a head that it needs."""
    masks = _only(states, op)
    (masks.slot if head is Head.SLOT else masks.blueprint)[:] = False
    return masks


def _only(states: States, op: Op) -> Masks:
    masks = Masks(*(np.zeros_like(mask) for mask in (states.masks.op, states.masks.slot, states.masks.blueprint)))
    masks.op[:, [OP_INDEX[Op.WAIT], OP_INDEX[op]]] = True
    masks.slot[:, OP_INDEX[op]] = Head.SLOT in RELEVANT_HEADS[op]
    masks.blueprint[:] = True
    return masks
