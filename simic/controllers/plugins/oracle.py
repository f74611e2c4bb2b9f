"""``oracle``: the best plan of each host's true family, which other controllers do not know.

Its return is an upper reference.
"""

from __future__ import annotations

from simic.controllers.plans import family_plans
from simic.controllers.protocol import ControllerContext
from simic.controllers.schedule_controller import ScheduleController

__all__ = ["NAME", "SUMMARY", "make"]

NAME = "oracle"
SUMMARY = "best plan of the host's family, a reference that is told the family: not achievable from observations"


def make(context: ControllerContext) -> ScheduleController:
    """Return a controller with the best plan of each host's family; raise ConfigError without a plan book."""
    return ScheduleController(NAME, family_plans(context.hosts))
