"""Trainable parameters of hosts without their seeds, and what growing costs in relation to them.

N hosts.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np
from numpy.typing import NDArray

from simic.contracts.config import WorldConfig
from simic.contracts.state import HostIdentity
from simic.hosts.batched.dataset import recipes_of
from simic.hosts.batched.trunk import Trunk
from simic.hosts.custom.forward import RngStream, seeded_rng
from simic.hosts.factory import trunk_of
from simic.hosts.host_sets import MODULES, TRUNKS, host_set
from simic.hosts.plugins import load_module_family
from simic.validation.episodes import Episodes

__all__ = ["extra_compute", "host_parameters"]


def host_parameters(hosts: Sequence[HostIdentity], world: WorldConfig) -> NDArray[np.int64]:
    """Return [N]: trainable parameters of each host of ``world.set`` before it grows.

    Hidden units of a batched block that a host does not use are not counted.
    """
    kind = host_set(world.set).kind
    if kind == MODULES:
        return np.array([_of_module(host) for host in hosts], dtype=np.int64)
    families = np.array([host.family for host in hosts] if kind == TRUNKS else [""] * len(hosts))
    sizes = np.zeros(len(hosts), dtype=np.int64)
    for family in set(families.tolist()):
        rows = np.flatnonzero(families == family)
        own = [hosts[row] for row in rows.tolist()]
        sizes[rows] = _of_trunk(trunk_of(own, kind)(recipes_of(own)), len(own))
    return sizes


def extra_compute(episodes: Episodes, sizes: NDArray[np.int64], horizon: int) -> NDArray[np.float64]:
    """Return [N]: parameters of seeds summed over epochs, as a share of ``sizes`` [N] times ``horizon``.

    A count of parameters, not of operations: a convolution uses each of its parameters more often than a linear layer.
    """
    return episodes.seed_epochs / (sizes * np.float64(horizon))


def _of_module(host: HostIdentity) -> int:
    with seeded_rng(host.key, RngStream.BIRTH):
        module = load_module_family(host.family).host(host.key).module
    return sum(parameter.numel() for parameter in module.parameters() if parameter.requires_grad)


def _of_trunk(trunk: Trunk, hosts: int) -> NDArray[np.int64]:
    total = np.zeros(hosts, dtype=np.int64)
    for part in trunk.parts:
        if part.hidden_axis is None:
            total += prod(part.shape)
        else:
            total += prod(part.shape) // part.shape[part.hidden_axis] * trunk.hidden[:, part.layer - 1]
    return total
