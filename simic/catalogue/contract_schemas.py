"""The contracts by name: JSON schemas and examples."""

from __future__ import annotations

import importlib
import pkgutil
from difflib import get_close_matches
from functools import cache
from typing import Any

import simic.contracts
from simic.contracts.base import Contract
from simic.contracts.errors import ConfigError
from simic.contracts.examples import EXAMPLES

__all__ = ["contract_names", "example_of", "schema_of"]


@cache
def _contracts() -> dict[str, type[Contract]]:
    """Return every public contract of ``simic.contracts`` by name."""
    contracts: dict[str, type[Contract]] = {}
    for module_info in pkgutil.walk_packages(simic.contracts.__path__, "simic.contracts."):
        module = importlib.import_module(module_info.name)
        for name in getattr(module, "__all__", ()):
            value = getattr(module, name)
            if isinstance(value, type) and issubclass(value, Contract) and value is not Contract:
                contracts[name] = value
    return contracts


def contract_names() -> list[str]:
    """Return the names of all contracts, sorted."""
    return sorted(_contracts())


def schema_of(name: str) -> dict[str, Any]:
    """Return the JSON schema of a contract on the wire; ``field_report`` names the same as ``FieldReport``.

    Raises:
        ConfigError: no contract has that name.
    """
    return _contracts()[_resolve(name)].model_json_schema()


def example_of(name: str) -> dict[str, Any]:
    """Return a valid example of a contract as plain JSON; names are those of ``schema_of``.

    Raises:
        ConfigError: no contract has that name, or there is no example of it.
    """
    known = _resolve(name)
    if known not in EXAMPLES:
        raise ConfigError(f"{known} has no example; these have one: {', '.join(EXAMPLES)}")
    return EXAMPLES[known]().model_dump(mode="json")


def _resolve(name: str) -> str:
    plain = {known.lower(): known for known in _contracts()}
    wanted = name.replace("_", "").replace("-", "").lower()
    if wanted not in plain:
        nearest = get_close_matches(wanted, plain, n=1)
        hint = f"did you mean {plain[nearest[0]]}? " if nearest else ""
        raise ConfigError(f"{name} is not a contract; {hint}`simic schema` lists them")
    return plain[wanted]
