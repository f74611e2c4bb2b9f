"""The sentence of an error about an unknown name that gives the known name which resembles it."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches

__all__ = ["suggestion"]


def suggestion(name: str, known: Iterable[str]) -> str:
    """Return `` Did you mean 'champion'?`` with the nearest known name, or an empty text if none resembles it."""
    near = get_close_matches(name, list(known), n=1)
    return f" Did you mean {near[0]!r}?" if near else ""
