"""The sentence of an error about an unknown name that gives the known name which resembles it."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches

__all__ = ["suggestion"]


def suggestion(name: str, known: Iterable[str], likeness: float = 0.6) -> str:
    """Return `` Did you mean 'champion'?`` with the nearest known name, or an empty text if none resembles it.

    ``likeness``, from 0 to 1, is the least ratio of matching characters.
    """
    near = get_close_matches(name, list(known), n=1, cutoff=likeness)
    return f" Did you mean {near[0]!r}?" if near else ""
