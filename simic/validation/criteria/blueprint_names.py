"""``blueprint_names``: the candidate decides beside blueprints that it has never met."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from simic.contracts.actions import Head
from simic.contracts.batches import HEAD_INDEX, Masks
from simic.contracts.results.gate import Criterion, Probe
from simic.controllers.learned_controller import LearnedController
from simic.validation.criterion import Case
from simic.validation.probing import States, Subject, count_failures, faulty, none_fail, states_of

__all__ = ["NAME", "ORDER", "SUMMARY", "judge", "measure"]

NAME = "blueprint_names"
SUMMARY = "decisions for hosts that offer unknown blueprints that choose one, or are illegal or not finite: none"
ORDER = 550
_UNKNOWN = ("unknown_one", "unknown_two", "unknown_three")


def measure(subject: Subject) -> Probe:
    """Count such decisions where unknown blueprints are offered too, and where only they are."""
    return count_failures(_cases(subject, states_of(subject)))


def judge(case: Case) -> Iterator[Criterion]:
    """Yield the criterion."""
    yield none_fail(case, NAME, "decisions for hosts that offer unknown blueprints that choose one, or are illegal")


def _cases(subject: Subject, states: States) -> Iterator[tuple[str, int, Callable[[], NDArray[np.bool_]]]]:
    for is_decisive in (True, False):
        policy = subject.policy(is_decisive=is_decisive)
        for is_alone, name in ((False, "unknown blueprints too"), (True, "unknown blueprints only")):
            yield name, len(states.uniforms), partial(_broken, policy, states, is_alone)


def _broken(policy: LearnedController, states: States, is_alone: bool) -> NDArray[np.bool_]:
    """Return bool [N]; the unknown ones come first, so that indices of the hosts and of the policy differ."""
    old, masks = states.observations, states.masks
    planted = old.slots["blueprint"]
    moved = np.where(planted < 0, planted, planted + len(_UNKNOWN)).astype(planted.dtype)
    offered = np.ones((len(masks.op), len(_UNKNOWN)), dtype=np.bool_)
    known = masks.blueprint & (not is_alone)
    other = States(
        replace(old, slots={**old.slots, "blueprint": moved}, blueprints=(*_UNKNOWN, *old.blueprints)),
        Masks(masks.op, masks.slot, np.concatenate([offered, known], axis=1)),
        states.uniforms,
    )
    decisions = policy.decide(*other)
    chosen = decisions.actions[:, HEAD_INDEX[Head.BLUEPRINT]]
    return faulty(decisions, other) | ((chosen >= 0) & (chosen < len(_UNKNOWN)))
