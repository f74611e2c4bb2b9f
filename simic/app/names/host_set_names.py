"""Checks the names of a host set and of its families; the error suggests the nearest set."""

from __future__ import annotations

from simic.contracts.errors import ConfigError
from simic.contracts.settings.run import RunConfig
from simic.hosts.host_sets import SETS, host_set, kept_families
from simic.hosts.plugins import family_names
from simic.runtime.nearest_name import suggestion

__all__ = ["check_run", "check_set", "is_set"]


def is_set(name: str) -> bool:
    """Return whether Simic can grow hosts of a set of this name."""
    return name in SETS or name in family_names()


def check_set(name: str) -> None:
    """Check that a set of this name exists.

    Raises:
        ConfigError: if it does not; the message suggests the nearest name.
    """
    if name in SETS:
        return
    known = [*SETS, *family_names()]
    if name not in known:
        shipped = {family for shipped_set in SETS.values() for family in shipped_set.families}
        installed = [family for family in family_names() if family not in shipped]
        raise ConfigError(
            f"{name!r} is not a set of hosts.{suggestion(name, known)} Known sets: {', '.join(SETS)}, and each family "
            f"of docs/world.md or of an installed package ({', '.join(installed) or 'none'}; "
            "docs/own-hosts.md says how)"
        )


def check_run(config: RunConfig) -> None:
    """Check the names of a run's set, of its further sets and of the families that its collections leave out.

    Raises:
        ConfigError: for an unknown name, or if no family of a set is left.
    """
    world = config.world
    check_set(world.set)
    for setting, names in (
        ("trial.also_sets", config.trial.also_sets),
        ("collect.further", [collection.set for collection in config.collect.further]),
    ):
        for name in names:
            try:
                check_set(name)
            except ConfigError as error:
                raise ConfigError(f"{setting}: {error}") from None
    if not world.without:
        return  # no set is opened, which would import a family of the user
    others = [collection.set for collection in config.further_collections]
    families = {name: host_set(name).families for name in (world.set, *others)}
    known = {family for name in families for family in families[name]}
    unknown = [family for family in world.without if family not in known]
    kept_families(world.set, [family for family in world.without if family in families[world.set]] + unknown)
    for name in others:
        kept_families(name, [family for family in world.without if family in families[name]])
