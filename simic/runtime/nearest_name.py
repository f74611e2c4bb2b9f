"""The sentence of an error about an unknown name that gives the known name which resembles it."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches

__all__ = ["FIELD_LIKENESS", "nearest", "suggestion"]

FIELD_LIKENESS = 0.75
"""Likeness of names of fields and settings, which share words more often than other names."""


def nearest(name: str, known: Iterable[str], likeness: float = 0.6) -> str | None:
    """Return the nearest known name whose ratio of matching characters, 0 to 1, is at least ``likeness``."""
    return next(iter(get_close_matches(name, list(known), n=1, cutoff=likeness)), None)


def suggestion(name: str, known: Iterable[str], likeness: float = 0.6) -> str:
    """Return `` Did you mean 'champion'?`` with the ``nearest`` name, or an empty text if there is none."""
    near = nearest(name, known, likeness)
    return "" if near is None else f" Did you mean {near!r}?"
