"""Simic: the offline factory that turns field reports into better, safer growth controllers.

The names below are the public API, which ``docs/api.md`` describes. A name is loaded when it is first used, so
``import simic`` loads neither torch nor MLflow.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from simic.api.data import read_snapshot, sql
    from simic.api.explanation import Explanation
    from simic.api.grower import Grower, Growth
    from simic.api.home import Home
    from simic.api.policy import Policy, load_policy
    from simic.api.reports import FieldReportWriter
    from simic.api.subscriber import Subscriber
    from simic.api.training_comparison import TrainingComparison, compare_trainings
    from simic.contracts.actions import Action, ActionMasks
    from simic.contracts.errors import (
        ConfigError,
        ContractError,
        DatasetError,
        IntegrityError,
        ResourceLimitError,
        SimicError,
        TransientError,
    )
    from simic.contracts.field_report import FieldReport
    from simic.contracts.policy_update import PolicyUpdate
    from simic.contracts.state import SystemState

__version__ = "0.1.0"

__all__ = [
    "Action",
    "ActionMasks",
    "ConfigError",
    "ContractError",
    "DatasetError",
    "Explanation",
    "FieldReport",
    "FieldReportWriter",
    "Grower",
    "Growth",
    "Home",
    "IntegrityError",
    "Policy",
    "PolicyUpdate",
    "ResourceLimitError",
    "SimicError",
    "Subscriber",
    "SystemState",
    "TrainingComparison",
    "TransientError",
    "compare_trainings",
    "load_policy",
    "read_snapshot",
    "sql",
]

_ERRORS = "simic.contracts.errors"
_MODULES = {
    "Action": "simic.contracts.actions",
    "ActionMasks": "simic.contracts.actions",
    "ConfigError": _ERRORS,
    "ContractError": _ERRORS,
    "DatasetError": _ERRORS,
    "Explanation": "simic.api.explanation",
    "FieldReport": "simic.contracts.field_report",
    "FieldReportWriter": "simic.api.reports",
    "Grower": "simic.api.grower",
    "Growth": "simic.api.grower",
    "Home": "simic.api.home",
    "IntegrityError": _ERRORS,
    "Policy": "simic.api.policy",
    "PolicyUpdate": "simic.contracts.policy_update",
    "ResourceLimitError": _ERRORS,
    "SimicError": _ERRORS,
    "Subscriber": "simic.api.subscriber",
    "SystemState": "simic.contracts.state",
    "TrainingComparison": "simic.api.training_comparison",
    "TransientError": _ERRORS,
    "compare_trainings": "simic.api.training_comparison",
    "load_policy": "simic.api.policy",
    "read_snapshot": "simic.api.data",
    "sql": "simic.api.data",
}
"""Module of each public name."""


if not TYPE_CHECKING:  # a type checker would take every name for known

    def __getattr__(name: str) -> Any:
        """Load a public name on its first use (PEP 562)."""
        if name not in _MODULES:
            raise AttributeError(f"module 'simic' has no attribute {name!r}; public names: {', '.join(__all__)}")
        value = globals()[name] = getattr(import_module(_MODULES[name]), name)
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_MODULES})
