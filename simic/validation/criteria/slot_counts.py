"""``slot_counts``: the candidate decides for hosts with more or fewer slots than it has met."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import numpy as np
from numpy.typing import NDArray

from simic.contracts.batches import Masks, Observations
from simic.contracts.results.gate import Criterion, Probe
from simic.controllers.learned_controller import LearnedController
from simic.validation.criterion import Case
from simic.validation.probing import States, Subject, count_failures, faulty, none_fail, states_of

__all__ = ["NAME", "ORDER", "SUMMARY", "judge", "measure"]

NAME = "slot_counts"
SUMMARY = "decisions for hosts of 1, 2, 3, 7, 17 and 64 slots that are illegal or not finite: none"
ORDER = 540
_COUNTS = (1, 2, 3, 7, 17, 64)


def measure(subject: Subject) -> Probe:
    """Count decisions that are illegal or not finite; slots are repeated or left out."""
    return count_failures(_cases(subject, states_of(subject)))


def judge(case: Case) -> Iterator[Criterion]:
    """Yield the criterion."""
    yield none_fail(case, NAME, "decisions for other numbers of slots that are illegal or not finite")


def _cases(subject: Subject, states: States) -> Iterator[tuple[str, int, Callable[[], NDArray[np.bool_]]]]:
    policies = [subject.policy(is_decisive=is_decisive) for is_decisive in (True, False)]
    for count in _COUNTS:
        for policy in policies:
            yield f"{count} slots", len(states.uniforms), partial(_broken, policy, states, count)


def _broken(policy: LearnedController, states: States, count: int) -> NDArray[np.bool_]:
    widened = _with_slots(states, count)
    return faulty(policy.decide(*widened), widened)


def _with_slots(states: States, count: int) -> States:
    """Return the same hosts with ``count`` slots each: the first ones, repeated in turn."""
    old, hosts = states.observations, len(states.uniforms)
    starts, sizes = old.slot_ptr[:-1], np.diff(old.slot_ptr)
    rows = (starts[:, None] + np.arange(count) % sizes[:, None]).ravel()
    edges, ends = [], [0]
    for host in range(hosts):
        slot, layer = old.monitors[:, old.monitors_ptr[host] : old.monitors_ptr[host + 1]]
        first = old.slot_ptr[host]
        own = [np.stack([np.full(int((slot == row - first).sum()), new), layer[slot == row - first]])
               for new, row in enumerate(rows[host * count : (host + 1) * count].tolist())]  # fmt: skip
        edges += own
        ends.append(ends[-1] + sum(part.shape[1] for part in own))
    widened = Observations(
        system=old.system, history=old.history, layers=old.layers, layer_ptr=old.layer_ptr, connects=old.connects,
        connects_ptr=old.connects_ptr, blueprints=old.blueprints,
        slots={name: values[rows] for name, values in old.slots.items()},
        slot_ptr=np.arange(0, (hosts + 1) * count, count), monitors=np.concatenate(edges, axis=1).astype(np.int64),
        monitors_ptr=np.array(ends),
    )  # fmt: skip
    slot = states.masks.slot[rows]
    op = states.masks.op.copy()
    # An operation that needs a slot stays legal only where a slot that is left may have it.
    needs = states.masks.slot.any(axis=0)
    op[:, needs] &= slot.reshape(hosts, count, -1).any(axis=1)[:, needs]
    return States(widened, Masks(op, slot, states.masks.blueprint), states.uniforms)
