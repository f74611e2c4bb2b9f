"""Checks the names of a host set and of its families; the error suggests the nearest set."""

from __future__ import annotations

from difflib import get_close_matches

from simic.contracts.config import TrialConfig, WorldConfig
from simic.contracts.errors import ConfigError
from simic.hosts.host_sets import SETS, kept_families
from simic.hosts.plugins import family_names

__all__ = ["check_further_sets", "check_set", "check_world"]


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


def check_world(world: WorldConfig) -> None:
    """Check the names of the set and of the families that its collection leaves out.

    Raises:
        ConfigError: for an unknown name, or if no family is left.
    """
    check_set(world.set)
    if world.without:  # else the set is not opened, which would import a family of the user
        kept_families(world.set, world.without)


def check_further_sets(config: TrialConfig) -> None:
    """Check the names of the further sets.

    Raises:
        ConfigError: for an unknown name.
    """
    for name in config.also_sets:
        try:
            check_set(name)
        except ConfigError as error:
            raise ConfigError(f"trial.also_sets: {error}") from None
