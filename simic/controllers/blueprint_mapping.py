"""Mapping between the blueprint indices of a policy and of its hosts; they match blueprints by name.

Shapes: N hosts, S slots of all hosts, K blueprints of the hosts, P blueprints of the policy, A heads.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from simic.contracts.actions import OPS, RELEVANT_HEADS, Head, Op
from simic.contracts.batches import HEAD_INDEX, OP_INDEX, Decisions, Masks, Observations
from simic.contracts.errors import ContractError

__all__ = ["BlueprintMapping", "allow_only", "consistent"]

_GERMINATE = OP_INDEX[Op.GERMINATE]
_BLUEPRINT = HEAD_INDEX[Head.BLUEPRINT]
_NEEDS_SLOT = np.array([Head.SLOT in RELEVANT_HEADS[op] for op in OPS])


class BlueprintMapping:
    """Translate observations, masks and decisions between two blueprint vocabularies.

    A policy cannot choose a blueprint that it does not know.
    """

    def __init__(self, policy: tuple[str, ...], hosts: tuple[str, ...]) -> None:
        self._policy, self._hosts = policy, hosts
        self._to_policy = np.array([policy.index(name) if name in policy else -1 for name in hosts], dtype=np.int16)
        self._to_hosts = np.array([hosts.index(name) if name in hosts else -1 for name in policy], dtype=np.int16)

    def to_policy(self, observations: Observations) -> Observations:
        """Return observations with the policy's blueprint indices.

        Raises:
            ContractError: if a slot holds a blueprint that the policy does not know.
        """
        if self._policy == self._hosts:
            return observations
        planted = observations.slots["blueprint"]
        translated = np.where(planted < 0, planted, self._to_policy[planted])
        unknown = sorted({self._hosts[index] for index in planted[(translated < 0) & (planted >= 0)].tolist()})
        if unknown:
            raise ContractError(f"policy knows blueprints {self._policy}, but the hosts hold seeds of {unknown}")
        slots = {**observations.slots, "blueprint": translated.astype(planted.dtype)}
        return replace(observations, slots=slots, blueprints=self._policy)

    def mask_unknown(self, masks: Masks, slot_ptr: NDArray[np.int64]) -> Masks:
        """Return the policy's masks: blueprint columns [N, P], and no germination where none is legal."""
        if self._policy == self._hosts:
            return masks
        offered = masks.blueprint[:, self._to_hosts] & (self._to_hosts >= 0)
        return allow_only(replace(masks, blueprint=offered), np.ones(len(self._policy), dtype=bool), slot_ptr)

    def actions_to_policy(self, actions: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """Return host actions [N, A] with the policy's blueprint indices, and where it knows the blueprint."""
        chosen = actions[:, _BLUEPRINT]
        mapped = np.where(chosen < 0, chosen, self._to_policy[chosen])
        translated = actions.copy()
        translated[:, _BLUEPRINT] = np.where(chosen < 0, chosen, np.maximum(mapped, 0))
        return translated, (chosen < 0) | (mapped >= 0)

    def to_host(self, decisions: Decisions) -> Decisions:
        """Return decisions with the hosts' blueprint indices."""
        if self._policy == self._hosts:
            return decisions
        actions = decisions.actions.copy()
        chosen = actions[:, _BLUEPRINT]
        actions[:, _BLUEPRINT] = np.where(chosen < 0, chosen, self._to_hosts[chosen])
        return replace(decisions, actions=actions)


def consistent(masks: Masks, slot_ptr: NDArray[np.int64]) -> Masks:
    """Return masks without the operations for which no slot, or to germinate no blueprint, is legal.

    The masks of a host never contradict each other so, and are returned as they are; those of a report may.
    """
    usable = np.zeros_like(masks.op)
    np.logical_or.at(usable, np.repeat(np.arange(len(masks.op)), np.diff(slot_ptr)), masks.slot)
    usable |= ~_NEEDS_SLOT
    usable[:, _GERMINATE] &= masks.blueprint.any(axis=1)
    return masks if (usable | ~masks.op).all() else replace(masks, op=masks.op & usable)


def allow_only(masks: Masks, blueprints: NDArray[np.bool_], slot_ptr: NDArray[np.int64]) -> Masks:
    """Return masks with only the given blueprints bool [K]; a host without any may not germinate."""
    left = masks.blueprint & blueprints
    can_grow = left.any(axis=1)
    op, slot = masks.op.copy(), masks.slot.copy()
    op[:, _GERMINATE] &= can_grow
    slot[:, _GERMINATE] &= np.repeat(can_grow, np.diff(slot_ptr))
    return Masks(op, slot, left)
