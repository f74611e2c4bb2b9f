"""The contracts by name."""

from __future__ import annotations

import importlib
import pkgutil
from difflib import get_close_matches
from functools import cache
from typing import Any

import simic.contracts
from simic.contracts.base import Contract
from simic.contracts.errors import ConfigError

__all__ = ["contract_names", "schema_of"]


@cache
def _contracts() -> dict[str, type[Contract]]:
    """Every public contract of the package, wherever it is defined."""
    found: dict[str, type[Contract]] = {}
    for module_info in pkgutil.iter_modules(simic.contracts.__path__):
        module = importlib.import_module(f"simic.contracts.{module_info.name}")
        for name in getattr(module, "__all__", ()):
            value = getattr(module, name)
            if isinstance(value, type) and issubclass(value, Contract) and value is not Contract:
                found[name] = value
    return found


def contract_names() -> list[str]:
    """All names, sorted."""
    return sorted(_contracts())


def schema_of(name: str) -> dict[str, Any]:
    """JSON schema of a contract as it stands on the wire; ``field_report`` is as good as ``FieldReport``."""
    plain = {known.lower(): known for known in _contracts()}
    wanted = name.replace("_", "").replace("-", "").lower()
    if wanted not in plain:
        nearest = get_close_matches(wanted, plain, n=1)
        hint = f"did you mean {plain[nearest[0]]}? " if nearest else ""
        raise ConfigError(f"{name} is not a contract; {hint}`simic schema` lists them")
    return _contracts()[plain[wanted]].model_json_schema()
