"""``node_order``: a decision does not depend on the order in which slots and layers are listed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from simic.contracts.actions import OPS
from simic.contracts.batches import Masks
from simic.contracts.results.gate import Criterion, Probe
from simic.controllers.learned_controller import LearnedController
from simic.validation.criterion import Case
from simic.validation.probing import States, Subject, count_failures, none_fail, states_of

__all__ = ["NAME", "ORDER", "SUMMARY", "judge", "measure"]

NAME = "node_order"
SUMMARY = "states whose probabilities change when slots and layers are listed in another order: none"
ORDER = 510
_TOLERANCE = 1e-5
"""Absolute, of probabilities: sums in another order differ in their last bits."""
_ORDERS = 3


def measure(subject: Subject) -> Probe:
    """Compare the probabilities of operations, slots and the other heads under random orders."""
    policy, states = subject.policy(is_decisive=True), states_of(subject)
    return count_failures(_cases(policy, states))


def judge(case: Case) -> Iterator[Criterion]:
    """Yield the criterion."""
    yield none_fail(case, NAME, "states whose probabilities change when slots and layers are listed in another order")


def _cases(policy: LearnedController, states: States) -> Iterator[tuple[str, int, Callable[[], NDArray[np.bool_]]]]:
    for seed in range(_ORDERS):
        yield f"order {seed}", len(states.uniforms), partial(_differs, policy, states, seed)


def _differs(policy: LearnedController, states: States, seed: int) -> NDArray[np.bool_]:
    """Return bool [N]: states with another probability in the order of ``seed``."""
    moved, order = _reordered(states, np.random.default_rng(seed))
    ours, theirs = (
        policy.consider(batch.observations, batch.masks, is_decisive=False).distribution for batch in (states, moved)
    )
    count = len(states.uniforms)
    ptr = states.observations.slot_ptr
    worst = np.abs(ours.ops() - theirs.ops()).max(axis=1)
    exists = np.arange(int(np.diff(ptr).max(initial=1))) < np.diff(ptr)[:, None]
    for op in range(len(OPS)):
        chosen = np.full(count, op, dtype=np.int64)
        before = np.take_along_axis(ours.slots(chosen), order, axis=1)
        worst = np.maximum(worst, np.where(exists, np.abs(before - theirs.slots(chosen)), 0.0).max(axis=1))
    heads = ours.factors(order[:, 0]), theirs.factors(np.zeros(count, dtype=np.int64))
    for head, table in heads[0].items():
        worst = np.maximum(worst, np.abs(table - heads[1][head]).max(axis=1))
    is_equal: NDArray[np.bool_] = worst <= _TOLERANCE
    return ~is_equal


def _reordered(states: States, rng: np.random.Generator) -> tuple[States, NDArray[np.int64]]:
    """Return the same states with slots and layers in another order, and the former index [N, M] of each slot."""
    old = states.observations
    slots, own_slots = _orders(old.slot_ptr, rng)
    layers, _ = _orders(old.layer_ptr, rng)
    new_slot, new_layer = _inverse(slots, old.slot_ptr), _inverse(layers, old.layer_ptr)
    monitors, connects = old.monitors.copy(), old.connects.copy()
    for row in range(len(old)):
        here = slice(int(old.monitors_ptr[row]), int(old.monitors_ptr[row + 1]))
        monitors[0, here] = new_slot[old.slot_ptr[row] + old.monitors[0, here]]
        monitors[1, here] = new_layer[old.layer_ptr[row] + old.monitors[1, here]]
        here = slice(int(old.connects_ptr[row]), int(old.connects_ptr[row + 1]))
        connects[:, here] = new_layer[old.layer_ptr[row] + old.connects[:, here]]
    moved = replace(
        old,
        slots={name: values[slots] for name, values in old.slots.items()},
        layers={name: values[layers] for name, values in old.layers.items()},
        monitors=monitors,
        connects=connects,
    )
    order = np.zeros((len(old), max((len(own) for own in own_slots), default=1)), dtype=np.int64)
    for row, own in enumerate(own_slots):
        order[row, : len(own)] = own
    return States(
        moved, Masks(states.masks.op, states.masks.slot[slots], states.masks.blueprint), states.uniforms
    ), order


def _orders(ptr: NDArray[np.int64], rng: np.random.Generator) -> tuple[NDArray[np.int64], list[NDArray[np.int64]]]:
    """Return the former row of each row of a ragged table, and the same per host, counted within it."""
    own = [rng.permutation(int(length)) for length in np.diff(ptr)]
    flat = [start + order for start, order in zip(ptr[:-1].tolist(), own, strict=True)]
    return np.concatenate([np.empty(0, dtype=np.int64), *flat]), own


def _inverse(former: NDArray[np.int64], ptr: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the new index within its host of each former row."""
    new = np.empty_like(former)
    new[former] = np.arange(len(former))
    return new - np.repeat(ptr[:-1], np.diff(ptr))
