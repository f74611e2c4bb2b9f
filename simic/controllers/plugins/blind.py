"""``blind``: the best plan for all hosts of a set, which observes none of them."""

from __future__ import annotations

from simic.contracts.controllers import Plan
from simic.controllers.plans import load_plans, one_set
from simic.controllers.protocol import ControllerContext
from simic.controllers.schedule_controller import ScheduleController

__all__ = ["NAME", "SUMMARY", "make"]

NAME = "blind"
SUMMARY = "follows the one plan that is best on average"


def make(context: ControllerContext) -> ScheduleController:
    """Return a controller with the set's best plan for all hosts; raise ConfigError without a plan book."""
    name = one_set(context.hosts)
    plan = Plan() if name is None else load_plans(name).blind
    return ScheduleController(NAME, [plan] * len(context.hosts))
