"""Identity of the simulation: its code, and the settings and data that decide the results of an episode."""

from __future__ import annotations

import hashlib
from functools import cache
from importlib.metadata import EntryPoint
from importlib.util import find_spec
from pathlib import Path

from simic.contracts.settings.run import WorldConfig
from simic.hosts.host_sets import MODULES, host_set
from simic.hosts.plugins import installed_families, installed_plugins, load_family, load_module_family
from simic.runtime.code_version import tree_digest

__all__ = ["world_digest", "world_identity"]

_SAME_BITS_THREADS = 2
"""Results of a host are bit-identical up to this many threads."""


@cache
def world_digest() -> str:
    """Return the SHA-256 over the sources of this package and of installed plug-ins; it identifies the simulation."""
    package = Path(__file__).parent
    plugged = sorted(
        f"{group}:{name}:{point.value}:{'' if point.dist is None else point.dist.version}:{_source_digest(point)}"
        for group, points in installed_plugins().items()
        for name, point in points.items()
    )
    return hashlib.sha256("\n".join([tree_digest(package.parent, (package.name,)), *plugged]).encode()).hexdigest()


def world_identity(world: WorldConfig) -> dict[str, str | int | float]:
    """Return the settings that decide an episode's results for given hosts and actions; speed settings are left out.

    Forms and devices agree except for rounding, which training may amplify, so both are part of the identity.
    """
    return {
        "code": world_digest(),
        "horizon": world.horizon,
        "prune_epochs": world.prune_epochs,
        "blend": world.blend,
        **world.rules,
        "form": f"{'masked' if world.is_masked else 'compacted'} on {world.device}",
        **({"threads": world.threads} if world.threads > _SAME_BITS_THREADS else {}),
        **_pictures(world.images),
        **_data_digests(world.set),
        **_optimiser_settings(world.set),
    }


def _pictures(images: str | None) -> dict[str, str]:
    """Return the digest of the user's pictures, if there are any."""
    if images is None:
        return {}
    from simic.hosts.batched.images import load_pictures  # imports torch, which a digest of code does without

    return {"pictures": load_pictures(images).digest}


def _data_digests(set_name: str) -> dict[str, str | int]:
    """Return the digests of data that families of modules read, by family, if they read any beside their code."""
    chosen = host_set(set_name)
    families = chosen.families if chosen.kind == MODULES else ()
    digests = {name: getattr(load_family(name), "data_digest", lambda: None)() for name in families}
    return {f"data of {name}": digest for name, digest in digests.items() if digest is not None}


def _optimiser_settings(set_name: str) -> dict[str, str | int]:
    """Return the optimisers of installed families, as their first hosts have them, by family, if they make any.

    A family may take its settings from outside its code, which the digest of the world covers.
    """
    chosen = host_set(set_name)
    installed = installed_families() if chosen.kind == MODULES else {}
    mine = [(key, name) for key, name in enumerate(chosen.families) if name in installed]
    if not mine:
        return {}
    from simic.hosts.custom.host import optimiser_of  # imports torch

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
