"""What one check of the doctor came to, in words that fit its report."""

from __future__ import annotations

from collections.abc import Sequence

from simic.contracts.lake import Check, Health

__all__ = ["damaged", "healthy", "lost", "repairable", "repaired", "shown"]

_SHOWN = 5
_LONGEST = 4096
"""Characters of one text of a check; what is wrong with a manifest may be said at greater length."""


def healthy(name: str, found: str) -> Check:
    """As it should be."""
    return _check(name, Health.HEALTHY, found, "")


def repairable(name: str, found: str, remedy: str) -> Check:
    """Left by a crash; ``--repair`` puts it right."""
    return _check(name, Health.REPAIRABLE, found, remedy)


def repaired(name: str, found: str, remedy: str) -> Check:
    """It was, and has been put right."""
    return _check(name, Health.REPAIRED, found, remedy)


def damaged(name: str, found: str, remedy: str) -> Check:
    """Not as it was committed, or out of reach."""
    return _check(name, Health.DAMAGED, found, remedy)


def lost(name: str, found: str, remedy: str) -> Check:
    """Taken out, and not all of it could be had again."""
    return _check(name, Health.LOST, found, remedy)


def _check(name: str, health: Health, found: str, remedy: str) -> Check:
    """Every check is made here, cut to what a report holds: it must not fail after it has acted."""
    return Check(name=name[:_LONGEST], health=health, found=found[:_LONGEST], remedy=remedy[:_LONGEST])


def shown(names: Sequence[str]) -> str:
    """The first few, and how many more."""
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return (", ".join(names[:_SHOWN]) or "no delivery it names") + more
