"""Arguments of other programs as JSON, read as strictly as ingestion reads a report."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from simic.contracts.errors import ContractError
from simic.runtime.repeated_fields import find_repeated_field

__all__ = ["encode", "parse_object"]


def encode(value: Any, name: str) -> bytes:
    """Return a value as JSON.

    Raises:
        ContractError: if JSON cannot express the value; the message begins with ``name``.
    """
    try:
        return json.dumps(dict(value) if isinstance(value, Mapping) else value).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise ContractError(f"{name}: expected what JSON can express, found: {error}") from error


def parse_object(text: str | bytes, name: str) -> dict[str, Any]:
    """Return the JSON object of a text.

    Raises:
        ContractError: if the text is no JSON object, or an object in it has a field twice; the message begins with
            ``name``.
    """
    try:
        parsed, repeated = json.loads(text), find_repeated_field(text)
    except (TypeError, ValueError, RecursionError) as error:
        raise ContractError(f"{name}: expected one JSON object, found something else: {error}") from error
    if not isinstance(parsed, dict):
        raise ContractError(f"{name}: expected a JSON object, found {type(parsed).__name__}")
    if repeated is not None:
        raise ContractError(f"{name}: {repeated}; leave one value")
    return parsed
