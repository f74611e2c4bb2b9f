"""Checks the name of a host set; the error suggests the nearest one."""

from __future__ import annotations

from difflib import get_close_matches

from simic.contracts.errors import ConfigError
from simic.hosts.host_sets import SETS
from simic.hosts.plugins import family_names

__all__ = ["check_set"]


def check_set(name: str) -> None:
    """Check that a set of this name exists.

    Raises:
        ConfigError: if it does not; the message suggests the nearest name.
    """
    if name in SETS:
        return
    known = [*SETS, *family_names()]
    if name not in known:
        near = get_close_matches(name, known, n=1)
        hint = f" Did you mean {near[0]!r}?" if near else ""
        raise ConfigError(
            f"{name!r} is not a set of hosts.{hint} Known sets: {', '.join(SETS)}, and the families "
            f"{', '.join(family_names())}. A family of your own must be installed"
        )
