"""Build host batches from identities, and find the blueprints that may grow in them."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from simic.contracts.errors import ConfigError
from simic.contracts.settings.lifecycle import LifecycleConfig
from simic.contracts.settings.run import WorldConfig
from simic.contracts.state import HostIdentity
from simic.hosts import lifecycle_gates
from simic.hosts.batched.host_batch import CompactedHosts
from simic.hosts.batched.images import pool_source
from simic.hosts.batched.masked.host_batch import MaskedHosts
from simic.hosts.batched.trunk import Trunk
from simic.hosts.blueprint_checks import initial_change
from simic.hosts.custom.host_batch import make_custom_hosts
from simic.hosts.host_sets import MODULES, TRUNKS, HostSet
from simic.hosts.interfaces import Blueprint, HostBatch, Operator, Site
from simic.hosts.plugins import blueprint_names, is_modular, load_blueprint, load_family, load_trunk

__all__ = ["allowed_blueprints", "is_sane", "make_host_batch", "offered_blueprints", "seed_sizes", "trunk_of"]


class _Unavailable(Blueprint):
    """Placeholder for a blueprint that a set does not allow: it suits no site, and no plug-in is loaded for it."""

    def suits(self, _site: Site, /) -> bool:
        return False

    def parameters(self, _site: Site, /) -> int:
        return 0

    def birth(self, normals: Tensor, _site: Site, /) -> Tensor:
        return normals

    def delta(self, _parameters: Tensor, h: Tensor, _noise: Tensor | None, /) -> Tensor:
        return torch.zeros_like(h)


_UNAVAILABLE = _Unavailable()


class _WithOperator(Blueprint):
    """A blueprint with its operator replaced."""

    def __init__(self, inner: Blueprint, operator: Operator) -> None:
        self.inner, self.operator, self.is_noisy = inner, operator, inner.is_noisy

    def suits(self, site: Site, /) -> bool:
        return self.inner.suits(site)

    def parameters(self, site: Site, /) -> int:
        return self.inner.parameters(site)

    def birth(self, normals: Tensor, site: Site, /) -> Tensor:
        return self.inner.birth(normals, site)

    def delta(self, parameters: Tensor, h: Tensor, noise: Tensor | None, /) -> Tensor:
        return self.inner.delta(parameters, h, noise)


def offered_blueprints(offered: Collection[str]) -> list[Blueprint]:
    """Return every known blueprint in index order, with those that are not offered replaced by one that cannot grow."""
    return [load_blueprint(name) if name in offered else _UNAVAILABLE for name in blueprint_names()]


def make_host_batch(hosts: Sequence[HostIdentity], chosen: HostSet, world: WorldConfig) -> HostBatch:
    """Return the hosts of a set, ready to train.

    Raises ConfigError for families of another kind than the set's, images for hosts that do not read any, a missing
    device, and a form that the hosts do not support.
    """
    names, blueprints = blueprint_names(), offered_blueprints(chosen.blueprints)
    if world.blend != "own":
        operator = Operator(world.blend)
        blueprints = [
            blueprint if blueprint.is_widening else _WithOperator(blueprint, operator) for blueprint in blueprints
        ]
    if world.images is not None and not chosen.has_pictures:
        raise ConfigError(
            f"world.images {world.images!r}: hosts of kind {chosen.kind!r} do not read images; choose a set that "
            "does, such as world.set=images, or leave it empty"
        )
    modular = {host.family: is_modular(host.family) for host in hosts}
    wants_modules = chosen.kind == MODULES
    strangers = sorted(name for name, is_module in modular.items() if is_module != wants_modules)
    if strangers:
        other = "stacked hosts" if wants_modules else "modules of their own"
        raise ConfigError(f"a set of kind {chosen.kind!r} cannot hold families {strangers}, which have {other}")
    if world.device == "cuda" and not torch.cuda.is_available():
        raise ConfigError(
            f"world.device = cuda: this machine has no CUDA device that PyTorch {torch.__version__} can use; "
            "use world.device = cpu, or install a PyTorch built for CUDA where there is one"
        )
    if wants_modules and world.is_masked:
        raise ConfigError(
            f"hosts of kind {chosen.kind!r} are not stacked, so they have no masked form and no CUDA graph; "
            "use world.device = cpu and world.form = auto"
        )
    if wants_modules:
        return make_custom_hosts(hosts, blueprints)
    kind, pools = trunk_of(hosts, chosen.kind), pool_source(world.images)
    if not world.is_masked:
        return CompactedHosts(hosts, blueprints, kind, pools)
    indices = [index for index, name in enumerate(names) if name in chosen.blueprints]
    return MaskedHosts(hosts, blueprints, kind, pools, offered=indices, device=torch.device(world.device))


def trunk_of(hosts: Sequence[HostIdentity], kind: str) -> type[Trunk]:
    """Return the trunk of stacked hosts of a set of that kind.

    Raises:
        ConfigError: if families have trunks of their own and the hosts are of several.
    """
    if kind != TRUNKS:
        return load_trunk(kind)
    families = sorted({host.family for host in hosts})
    if len(families) > 1:
        raise ConfigError(f"hosts with trunks of their own form one batch per family, found {', '.join(families)}")
    trunk: type[Trunk] = load_family(families[0]).trunk  # type: ignore[attr-defined]
    return trunk


def allowed_blueprints(batch: HostBatch, chosen: HostSet, rules: LifecycleConfig) -> NDArray[np.bool_]:
    """Return bool [K]: blueprints of the set that pass G0 in every slot; raise ConfigError if none does."""
    names = blueprint_names()
    sane = np.array(
        [
            name in chosen.blueprints and all(is_sane(blueprint, site, rules) for site in set(batch.topology.sites))
            for name, blueprint in zip(names, batch.blueprints, strict=True)
        ]
    )
    if not sane.any():
        sites = ", ".join(map(str, sorted(set(batch.topology.sites))))
        raise ConfigError(f"none of the blueprints {', '.join(chosen.blueprints)} can grow in every one of {sites}")
    return sane


def seed_sizes(batch: HostBatch) -> NDArray[np.int32]:
    """Return int32 [S, K]: parameters of each blueprint in each slot; 0 where it does not suit the site."""
    return np.array(
        [
            [blueprint.parameters(site) if blueprint.suits(site) else 0 for blueprint in batch.blueprints]
            for site in batch.topology.sites
        ],
        dtype=np.int32,
    )


def is_sane(blueprint: Blueprint, site: Site, rules: LifecycleConfig) -> bool:
    """Check gate G0 on two initialised seeds; raise ConfigError if the blueprint itself fails."""
    if not blueprint.suits(site):
        return False
    try:
        keeps_shape, deviation = initial_change(blueprint, site)
    except (RuntimeError, ValueError, TypeError, IndexError) as error:
        # An installed blueprint is code of another package.
        raise ConfigError(f"blueprint {type(blueprint).__name__} fails on {site}: {error}") from error
    verdict = lifecycle_gates.is_sane(rules, is_known=True, keeps_shape=keeps_shape, birth_deviation=deviation)
    return bool(verdict.passed)
