"""``symptom``: a small decision tree reads the observation after the first epoch and chooses a fixed plan.

It waits at epoch 0, chooses at epoch 1 and then follows the plan without further observation. The tree was fitted on
training hosts and does not know the host's family.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from simic.contracts.batches import Decisions, Masks, Observations
from simic.contracts.controllers import Plan, PlanTree
from simic.controllers.plans import load_plans, one_set, symptom_tree
from simic.controllers.protocol import ControllerContext
from simic.controllers.schedule_controller import ScheduleController
from simic.controllers.symptoms import choose

__all__ = ["NAME", "READS_AT", "SUMMARY", "SymptomController", "make"]

NAME = "symptom"
SUMMARY = "a small tree that chooses a fixed plan from what is observed after the first epoch"

READS_AT = 1
"""Epoch at which the tree is read."""


class SymptomController:
    """Remembers the plan of each host from the epoch at which the tree was read; before that it waits."""

    name = NAME
    policy_version: str | None = None

    def __init__(self, tree: PlanTree, hosts: int) -> None:
        self._tree = tree
        self._plans = [Plan()] * hosts
        self._schedule = ScheduleController(NAME, self._plans)

    def decide(self, observations: Observations, masks: Masks, uniforms: NDArray[Any]) -> Decisions:
        """Return one legal action per host."""
        reading = np.flatnonzero(observations.system["epoch"] == READS_AT)
        if len(reading):
            chosen = choose(self._tree, observations.take(reading))
            for host, plan in zip(reading.tolist(), chosen.tolist(), strict=True):
                self._plans[host] = self._tree.plans[plan]
            self._schedule = ScheduleController(NAME, self._plans)
        return self._schedule.decide(observations, masks, uniforms)


def make(context: ControllerContext) -> SymptomController | ScheduleController:
    """Return a controller with the tree of the spec or of the set's book; raise ConfigError if there is none."""
    name = one_set(context.hosts)
    if name is None:
        return ScheduleController(NAME, [])
    return SymptomController(context.spec.tree or symptom_tree(load_plans(name)), len(context.hosts))
