"""Controllers by name: the modules of ``plugins``, then the entry points of group ``simic.controllers``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from simic.contracts.controllers import ControllerSpec
from simic.contracts.state import HostIdentity
from simic.controllers.plans import plans_from
from simic.controllers.plugins import CONTROLLERS
from simic.controllers.protocol import Controller, ControllerContext, Verify

__all__ = ["make"]


def make(spec: ControllerSpec, hosts: Sequence[HostIdentity], *, verify: Verify | None = None) -> Controller:
    """Build the controller that a spec names.

    Args:
        spec: name and parameters.
        hosts: the hosts to act on, in the order of the observations.
        verify: checks the seal of a policy before it is read.

    Raises:
        ConfigError: for an unknown name or a parameter that is missing.
    """
    module = CONTROLLERS.load(spec.name)
    with plans_from(None if spec.plans_path is None else Path(spec.plans_path)):
        controller: Controller = module.make(ControllerContext(spec, hosts, verify))
    return controller
