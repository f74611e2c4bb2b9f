"""Blueprints, families and trunks by name: files of this package, then entry points; listing names needs no torch."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

from simic.contracts.errors import ConfigError
from simic.runtime.plugin_folder import PluginFolder

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

    from simic.hosts.batched.trunk import Trunk
    from simic.hosts.custom.interface import ModuleFamily
    from simic.hosts.interfaces import Blueprint, HostFamily

__all__ = [
    "blueprint_names",
    "family_names",
    "installed_families",
    "installed_plugins",
    "is_modular",
    "load_blueprint",
    "load_family",
    "load_module_family",
    "load_trunk",
]

_BLUEPRINTS = PluginFolder("blueprint", "simic.hosts.blueprints", "simic.blueprints", ("BLUEPRINT",))
_FAMILIES = PluginFolder("host family", "simic.hosts.families", "simic.host_families", ("FAMILY",))
_TRUNKS = PluginFolder("trunk", "simic.hosts.trunks", "simic.host_trunks", ("TRUNK",))


def blueprint_names() -> tuple[str, ...]:
    """Return shipped blueprints in alphabetical order, then installed ones; the position is the index in actions."""
    return _names(_BLUEPRINTS)


def family_names() -> tuple[str, ...]:
    """Return shipped families in alphabetical order, then installed ones."""
    return _names(_FAMILIES)


def load_blueprint(name: str) -> Blueprint:
    """Return the blueprint of that name; raise ConfigError if there is none."""
    blueprint: Blueprint = _load(_BLUEPRINTS, name)
    return blueprint


def load_family(name: str) -> HostFamily:
    """Return the family of batched hosts of that name; raise ConfigError if there is none."""
    family: HostFamily = _load(_FAMILIES, name)
    return family


def load_module_family(name: str) -> ModuleFamily:
    """Return the family of custom hosts of that name; raise ConfigError if there is none."""
    family: ModuleFamily = _load(_FAMILIES, name)
    return family


def is_modular(name: str) -> bool:
    """Return whether a family brings modules (``host``) rather than batched hosts (``recipe``)."""
    family: Any = _load(_FAMILIES, name)
    offers = [method for method in ("host", "recipe") if callable(getattr(family, method, None))]
    if len(offers) != 1 or isinstance(family, type):
        what = f"the class {family.__name__}" if isinstance(family, type) else f"an object with {offers or 'neither'}"
        raise ConfigError(
            f"family {name!r}: expected an instance with either `host` (a module) or `recipe` (a stacked host), "
            f"found {what}"
        )
    return offers == ["host"]


def load_trunk(name: str) -> type[Trunk]:
    """Return the trunk of that name; raise ConfigError if there is none."""
    trunk: type[Trunk] = _load(_TRUNKS, name)
    return trunk


def installed_plugins() -> dict[str, dict[str, EntryPoint]]:
    """Return the installed blueprints, families and trunks by group of entry points and by name; imports none."""
    return {folder.group: folder.installed() for folder in (_BLUEPRINTS, _FAMILIES, _TRUNKS)}


def installed_families() -> dict[str, EntryPoint]:
    """Return the installed families by name; imports none."""
    return _FAMILIES.installed()


@cache
def _names(folder: PluginFolder) -> tuple[str, ...]:
    return folder.names()


@cache
def _load(folder: PluginFolder, name: str) -> Any:
    return folder.load_object(name)
