"""Simic: the offline factory that turns field reports into better, safer growth controllers.

The names below are the public API, which ``docs/api.md`` describes. A name is loaded when it is first used, so
``import simic`` loads neither torch nor MLflow.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from simic.api.explanation import Explanation
    from simic.api.home import Home
    from simic.api.policy import Policy, load_policy
    from simic.contracts.actions import Action, ActionMasks
    from simic.contracts.errors import ConfigError, ContractError, IntegrityError, SimicError, TransientError
    from simic.contracts.state import SystemState

__version__ = "0.1.0"

__all__ = [
    "Action",
    "ActionMasks",
    "ConfigError",
    "ContractError",
    "Explanation",
    "Home",
    "IntegrityError",
    "Policy",
    "SimicError",
    "SystemState",
    "TransientError",
    "load_policy",
]

_ERRORS = "simic.contracts.errors"
_MODULES = {
    "Action": "simic.contracts.actions",
    "ActionMasks": "simic.contracts.actions",
    "ConfigError": _ERRORS,
    "ContractError": _ERRORS,
    "Explanation": "simic.api.explanation",
    "Home": "simic.api.home",
    "IntegrityError": _ERRORS,
    "Policy": "simic.api.policy",
    "SimicError": _ERRORS,
    "SystemState": "simic.contracts.state",
    "TransientError": _ERRORS,
    "load_policy": "simic.api.policy",
}
"""Module of each public name."""


def __getattr__(name: str) -> Any:
    """Load a public name on its first use (PEP 562)."""
    if name not in _MODULES:
        raise AttributeError(f"module 'simic' has no attribute {name!r}; public names: {', '.join(__all__)}")
    value = globals()[name] = getattr(import_module(_MODULES[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_MODULES})
