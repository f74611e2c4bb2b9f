"""What is wrong with data that a contract refuses, in words."""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import ValidationError
from pydantic_core import ErrorDetails

__all__ = ["describe_faults"]

MOST = 3
LONGEST = 300
"""Characters of one fault; the name of an unknown field may be as long as the data."""
_OWN = "Value error, "
"""What pydantic puts before the message of a check in code."""


def describe_faults(
    error: ValidationError, whole: str, chosen: Sequence[ErrorDetails] = (), *, within: str = ""
) -> str:
    """Return the first faults that pydantic found, or those of ``chosen``, each with its place, and how many there are.

    ``whole`` names the data, for a fault that lies in no field. All places begin with ``within``, if it is given.
    Values are not quoted: they may be hostile or secret. Names of fields are, on one line.
    """
    shown = [_describe(fault, whole, within) for fault in (chosen or error.errors(include_url=False))[:MOST]]
    count = error.error_count()
    return "; ".join(shown) + (f"; {count} faults in all" if count > len(shown) else "")


def _describe(fault: ErrorDetails, whole: str, within: str) -> str:
    """Return one fault as ``<place>: <message>``; the check of a whole contract names the field in its message."""
    place = ".".join(map(_printable, ((within,) if within else ()) + fault["loc"]))
    message = fault["msg"].removeprefix(_OWN)
    is_named = message.startswith(f"{place}: ") if place else fault["type"] == "value_error"
    return (message if is_named else f"{place or whole}: {message}")[:LONGEST]


def _printable(part: object) -> str:
    """Return a part of a place, with line ends and control characters of an unknown name escaped."""
    text = str(part)
    return text if text.isprintable() else ascii(text)[1:-1]
