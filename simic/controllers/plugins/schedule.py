"""``schedule``: one given plan for every host."""

from __future__ import annotations

from simic.contracts.errors import ConfigError
from simic.controllers.protocol import ControllerContext
from simic.controllers.schedule_controller import ScheduleController

__all__ = ["NAME", "SUMMARY", "make"]

NAME = "schedule"
SUMMARY = "follows the plan of its spec"


def make(context: ControllerContext) -> ScheduleController:
    """Return a controller with the plan of the spec; raise ConfigError if it has none."""
    if context.spec.plan is None:
        raise ConfigError("controller 'schedule' needs a plan")
    return ScheduleController(NAME, [context.spec.plan] * len(context.hosts))
