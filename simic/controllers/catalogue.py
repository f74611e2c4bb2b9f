"""All controllers by name. To add one: write its file with a factory, and name it here."""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Sequence

from simic.contracts.controllers import ControllerSpec
from simic.contracts.errors import ConfigError
from simic.contracts.state import HostIdentity
from simic.controllers.protocol import Controller
from simic.controllers.request import Request, Verify

__all__ = ["controller_names", "make"]

_FACTORIES: dict[str, tuple[str, str]] = {
    "wait": ("simic.controllers.wait", "make"),
    "random": ("simic.controllers.random_legal", "make"),
    "explore": ("simic.controllers.explore", "make"),
    "heuristic": ("simic.controllers.heuristic", "make"),
    "schedule": ("simic.controllers.schedule", "make_schedule"),
    "blind": ("simic.controllers.schedule", "make_blind"),
    "oracle": ("simic.controllers.schedule", "make_oracle"),
    "expert": ("simic.controllers.expert", "make"),
    "learned": ("simic.controllers.learned", "make"),
}
"""Module and factory; imported on demand, so that only ``learned`` loads torch."""


def controller_names() -> tuple[str, ...]:
    """Every name ``make`` knows."""
    return tuple(_FACTORIES)


def make(spec: ControllerSpec, hosts: Sequence[HostIdentity], *, verify: Verify | None = None) -> Controller:
    """The controller of that name for these hosts; ``verify`` checks the seal of a policy before it is read."""
    if spec.name not in _FACTORIES:
        near = difflib.get_close_matches(spec.name, _FACTORIES, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise ConfigError(f"unknown controller {spec.name!r}, known are {sorted(_FACTORIES)}{hint}")
    module, factory = _FACTORIES[spec.name]
    controller: Controller = getattr(importlib.import_module(module), factory)(Request(spec, hosts, verify))
    return controller
