"""``repeatability``: equal states and random numbers give equal decisions, bit for bit."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import numpy as np
from numpy.typing import NDArray

from simic.contracts.results.gate import Criterion, Probe
from simic.controllers.learned_controller import LearnedController
from simic.validation.criterion import Case
from simic.validation.probing import States, Subject, count_failures, decision_bytes, none_fail, states_of

__all__ = ["NAME", "ORDER", "SUMMARY", "judge", "measure"]

NAME = "repeatability"
SUMMARY = "states with another action or log-probability, in any bit, when loaded again, repeated or alone: none"
ORDER = 505


def measure(subject: Subject) -> Probe:
    """Compare decisions of two loaded copies, twice in a row, and of each state alone; decisive and exploring."""
    return count_failures(_cases(subject, states_of(subject)))


def judge(case: Case) -> Iterator[Criterion]:
    """Yield the criterion."""
    yield none_fail(case, NAME, "states with another action or log-probability when loaded again, repeated or alone")


def _cases(subject: Subject, states: States) -> Iterator[tuple[str, int, Callable[[], NDArray[np.bool_]]]]:
    count = len(states.uniforms)
    for is_decisive in (True, False):
        policy, copy = (subject.policy(is_decisive=is_decisive) for _ in range(2))
        yield "loaded again", count, partial(_differs, policy, copy, states)
        yield "repeated", count, partial(_differs, policy, policy, states)
        yield "alone", count, partial(_differs_alone, policy, states)


def _differs(one: LearnedController, other: LearnedController, states: States) -> NDArray[np.bool_]:
    decisions = [policy.decide(*states) for policy in (one, other)]
    return _unlike(decision_bytes(decisions[0]), decision_bytes(decisions[1]))


def _differs_alone(policy: LearnedController, states: States) -> NDArray[np.bool_]:
    rows = np.arange(len(states.uniforms))
    alone = [decision_bytes(policy.decide(*states.take(rows[row : row + 1]))) for row in rows]
    return _unlike(decision_bytes(policy.decide(*states)), np.concatenate(alone))


def _unlike(one: NDArray[np.uint8], other: NDArray[np.uint8]) -> NDArray[np.bool_]:
    is_unlike: NDArray[np.bool_] = (one != other).any(axis=1)
    return is_unlike
