"""Blueprints, families and trunks by name: files of this package, then entry points; listing names needs no torch."""

from __future__ import annotations

import hashlib
from functools import cache
from importlib.metadata import EntryPoint
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from simic.contracts.errors import ConfigError
from simic.contracts.settings.run import WorldConfig
from simic.runtime.code_version import tree_digest
from simic.runtime.plugin_folder import PluginFolder

if TYPE_CHECKING:
    from simic.hosts.batched.trunk import Trunk
    from simic.hosts.custom.interface import ModuleFamily
    from simic.hosts.interfaces import Blueprint, HostFamily

__all__ = [
    "blueprint_names",
    "family_names",
    "is_modular",
    "load_blueprint",
    "load_family",
    "load_module_family",
    "load_trunk",
    "world_digest",
    "world_identity",
]

_SAME_BITS_THREADS = 2
"""Results of a host are bit-identical up to this many threads."""
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


@cache
def world_digest() -> str:
    """Return the SHA-256 over the sources of this package and of installed plug-ins; it identifies the simulation."""
    package = Path(__file__).parent
    plugged = sorted(
        f"{kind.group}:{name}:{point.value}:{'' if point.dist is None else point.dist.version}:{_source_digest(point)}"
        for kind in (_BLUEPRINTS, _FAMILIES, _TRUNKS)
        for name, point in kind.installed().items()
    )
    return hashlib.sha256("\n".join([tree_digest(package.parent, (package.name,)), *plugged]).encode()).hexdigest()


def world_identity(world: WorldConfig) -> dict[str, str | int | float]:
    """Return the settings that decide an episode's results for given hosts and actions; speed settings are left out.

    Forms and devices agree except for rounding, which training may amplify, so both are part of the identity.
    """
    pictures: dict[str, str | int] = {}
    if world.images is not None:
        from simic.hosts.batched.images import load_pictures

        pictures["pictures"] = load_pictures(world.images).digest
    return {
        "code": world_digest(),
        "horizon": world.horizon,
        "prune_epochs": world.prune_epochs,
        "blend": world.blend,
        **world.rules,
        "form": f"{'masked' if world.is_masked else 'compacted'} on {world.device}",
        **({"threads": world.threads} if world.threads > _SAME_BITS_THREADS else {}),
        **pictures,
        **_data_digests(world.set),
        **_optimisers(world.set),
    }


def _data_digests(set_name: str) -> dict[str, str | int]:
    """Return the digests of data that families of modules read, by family, if they read any beside their code."""
    from simic.hosts.host_sets import MODULES, host_set

    chosen = host_set(set_name)
    families = chosen.families if chosen.kind == MODULES else ()
    digests = {name: getattr(load_family(name), "data_digest", lambda: None)() for name in families}
    return {f"data of {name}": digest for name, digest in digests.items() if digest is not None}


def _optimisers(set_name: str) -> dict[str, str | int]:
    """Return the optimisers of installed families, as their first hosts have them, by family, if they make any.

    A family may take its settings from outside its code, which the digest of the world covers.
    """
    from simic.hosts.host_sets import MODULES, host_set

    chosen = host_set(set_name)
    installed = _FAMILIES.installed() if chosen.kind == MODULES else {}
    mine = [(key, name) for key, name in enumerate(chosen.families) if name in installed]
    if not mine:
        return {}
    from simic.hosts.custom.host import optimiser_of

    optimisers = {name: optimiser_of(load_module_family(name), key) for key, name in mine}
    return {f"optimiser of {name}": text for name, text in optimisers.items() if text is not None}


def _source_digest(point: EntryPoint) -> str:
    """Return the SHA-256 over the sources of a plug-in's top-level module or package, without importing it."""
    spec = find_spec(point.module.partition(".")[0])
    if spec is None:
        return ""
    folders = [Path(folder) for folder in spec.submodule_search_locations or ()]
    files = sorted(file for folder in folders for file in folder.rglob("*.py"))
    if not folders and spec.origin is not None and Path(spec.origin).is_file():
        files = [Path(spec.origin)]
    return hashlib.sha256(b"".join(hashlib.sha256(file.read_bytes()).digest() for file in files)).hexdigest()


@cache
def _names(folder: PluginFolder) -> tuple[str, ...]:
    return folder.names()


@cache
def _load(folder: PluginFolder, name: str) -> Any:
    return folder.load_object(name)
