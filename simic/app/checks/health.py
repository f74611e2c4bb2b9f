"""Results of the doctor's checks: one constructor per state of health."""

from __future__ import annotations

from collections.abc import Sequence

from simic.contracts.results.lake import Check, Health

__all__ = ["counted", "damaged", "healthy", "repairable", "repaired", "summarise", "unrecoverable"]

_SHOWN = 5
_LONGEST = 4096
"""Largest length of one text of a check, as a problem with a manifest may have a longer description."""


def counted(number: int, noun: str) -> str:
    """Return ``1 line`` or ``2 lines``."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def healthy(name: str, found: str) -> Check:
    """Return a check that found nothing wrong."""
    return _check(name, Health.HEALTHY, found, "")


def repairable(name: str, found: str, remedy: str) -> Check:
    """Return a check of something that a crash left and ``--repair`` corrects."""
    return _check(name, Health.REPAIRABLE, found, remedy)


def repaired(name: str, found: str, remedy: str) -> Check:
    """Return a check of something that was wrong and has been repaired."""
    return _check(name, Health.REPAIRED, found, remedy)


def damaged(name: str, found: str, remedy: str) -> Check:
    """Return a check of something that changed since it was committed, or that cannot be reached."""
    return _check(name, Health.DAMAGED, found, remedy)


def unrecoverable(name: str, found: str, remedy: str) -> Check:
    """Return a check of something that was removed and could not be recovered completely."""
    return _check(name, Health.LOST, found, remedy)


def _check(name: str, health: Health, found: str, remedy: str) -> Check:
    """Truncate the texts to what a report holds, because a check must not fail after it has repaired something."""
    return Check(name=_fit(name), health=health, found=_fit(found), remedy=_fit(remedy))


def _fit(text: str) -> str:
    """Escape bytes that are not UTF-8, which file names may contain, and truncate."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")[:_LONGEST]


def summarise(names: Sequence[str]) -> str:
    """Return the first few names and the number of the others."""
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return (", ".join(names[:_SHOWN]) or "no delivery it names") + more
