"""JSON objects that have a field twice, of which parsers silently take the last."""

from __future__ import annotations

import json
from typing import Any

__all__ = ["find_repeated_field"]


class _RepeatedKeyError(Exception):
    """An object has a field twice."""


def find_repeated_field(text: str | bytes) -> str | None:
    """Return which field occurs twice in an object of a JSON text, as a message; None if none does.

    Raises:
        ValueError: if the text is not JSON.
    """
    try:
        json.loads(text, object_pairs_hook=_unique)
    except _RepeatedKeyError as error:
        return str(error)
    return None


def _unique(pairs: list[tuple[str, Any]]) -> None:
    names = [name for name, _ in pairs]
    if len(set(names)) != len(names):
        name = next(name for name in names if names.count(name) > 1)
        raise _RepeatedKeyError(f"{name}: expected once in an object, found {names.count(name)} times")
