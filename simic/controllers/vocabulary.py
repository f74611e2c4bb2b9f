"""A policy's blueprints and the hosts': another installation knows others, and an index means nothing by itself.

Shapes: N hosts, S slots of all hosts, K blueprints of the hosts, P blueprints of the policy, A heads.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from simic.contracts.actions import Head, Op
from simic.contracts.batches import HEAD_INDEX, OP_INDEX, Decisions, Masks, Observations
from simic.contracts.errors import ContractViolation

__all__ = ["Dictionary", "allow_only"]

_GERMINATE = OP_INDEX[Op.GERMINATE]
_BLUEPRINT = HEAD_INDEX[Head.BLUEPRINT]


class Dictionary:
    """From the hosts' vocabulary to the policy's and back.

    What the policy has no word for it cannot choose; a seed of such a blueprint, which only another controller can
    have planted, is a ContractViolation.
    """

    def __init__(self, policy: tuple[str, ...], hosts: tuple[str, ...]) -> None:
        self._policy, self._hosts = policy, hosts
        self._to_policy = np.array([policy.index(name) if name in policy else -1 for name in hosts], dtype=np.int16)
        self._to_hosts = np.array([hosts.index(name) if name in hosts else -1 for name in policy], dtype=np.int16)

    def read(self, observations: Observations) -> Observations:
        """In the policy's words."""
        if self._policy == self._hosts:
            return observations
        planted = observations.slots["blueprint"]
        translated = np.where(planted < 0, planted, self._to_policy[planted])
        unknown = sorted({self._hosts[index] for index in planted[(translated < 0) & (planted >= 0)].tolist()})
        if unknown:
            raise ContractViolation(f"policy knows blueprints {self._policy}, but the hosts hold seeds of {unknown}")
        slots = {**observations.slots, "blueprint": translated.astype(planted.dtype)}
        return replace(observations, slots=slots, blueprints=self._policy)

    def narrow(self, masks: Masks, slot_ptr: NDArray[np.int64]) -> Masks:
        """What the policy may choose: columns [N, P], and no germination where none of them is legal."""
        if self._policy == self._hosts:
            return masks
        offered = masks.blueprint[:, self._to_hosts] & (self._to_hosts >= 0)
        return allow_only(replace(masks, blueprint=offered), np.ones(len(self._policy), dtype=bool), slot_ptr)

    def write(self, decisions: Decisions) -> Decisions:
        """In the hosts' words."""
        if self._policy == self._hosts:
            return decisions
        actions = decisions.actions.copy()
        chosen = actions[:, _BLUEPRINT]
        actions[:, _BLUEPRINT] = np.where(chosen < 0, chosen, self._to_hosts[chosen])
        return replace(decisions, actions=actions)


def allow_only(masks: Masks, blueprints: NDArray[np.bool_], slot_ptr: NDArray[np.int64]) -> Masks:
    """Without all blueprints but the given [K]; a host left with none may not germinate."""
    left = masks.blueprint & blueprints
    can_grow = left.any(axis=1)
    op, slot = masks.op.copy(), masks.slot.copy()
    op[:, _GERMINATE] &= can_grow
    slot[:, _GERMINATE] &= np.repeat(can_grow, np.diff(slot_ptr))
    return Masks(op, slot, left)
