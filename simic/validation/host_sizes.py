"""What hosts hold before they grow: trainable parameters, and samples per epoch.

N hosts.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from simic.contracts.settings.run import WorldConfig
from simic.contracts.state import HostIdentity
from simic.hosts.batched.data import digit_pool
from simic.hosts.batched.dataset import recipes_of
from simic.hosts.batched.images import pool_source
from simic.hosts.batched.sizes import BATCH, SAMPLES
from simic.hosts.batched.trunk import live_parameters
from simic.hosts.custom.forward import RngStream, seeded_rng
from simic.hosts.factory import trunk_of
from simic.hosts.host_sets import MODULES, TRUNKS, host_set
from simic.hosts.interfaces import DataSplit
from simic.hosts.plugins import load_module_family

__all__ = ["HostSizes", "host_sizes"]


class HostSizes(NamedTuple):
    """Sizes of N hosts, int64 [N] each."""

    parameters: NDArray[np.int64]
    """Trainable parameters without seeds. Hidden units of a batched block that a host does not use are not counted."""
    samples: NDArray[np.int64]
    """Samples that an epoch of training shows."""
    validation: NDArray[np.int64]
    """Samples of an evaluation."""
    batch: NDArray[np.int64]
    """Samples of a batch."""


def host_sizes(hosts: Sequence[HostIdentity], world: WorldConfig) -> HostSizes:
    """Return the sizes of hosts of ``world.set``."""
    kind = host_set(world.set).kind
    if kind == MODULES:
        return HostSizes(*np.array([_of_module(host) for host in hosts], dtype=np.int64).T)
    validation = len((pool_source(world.images) or digit_pool)(DataSplit.VALIDATION).labels)
    same = (np.full(len(hosts), size, dtype=np.int64) for size in (SAMPLES, validation, BATCH))
    return HostSizes(_parameters(hosts, kind), *same)


def _parameters(hosts: Sequence[HostIdentity], kind: str) -> NDArray[np.int64]:
    """Return [N]: the parameters of batched hosts."""
    families = np.array([host.family for host in hosts] if kind == TRUNKS else [""] * len(hosts))
    sizes = np.zeros(len(hosts), dtype=np.int64)
    for family in set(families.tolist()):
        rows = np.flatnonzero(families == family)
        own = [hosts[row] for row in rows.tolist()]
        sizes[rows] = live_parameters(trunk_of(own, kind)(recipes_of(own)), len(own))
    return sizes


def _of_module(host: HostIdentity) -> tuple[int, int, int, int]:
    with seeded_rng(host.key, RngStream.BIRTH):
        module_host = load_module_family(host.family).host(host.key)
    parameters = sum(parameter.numel() for parameter in module_host.module.parameters() if parameter.requires_grad)
    shown = len(module_host.train.labels) // module_host.batch * module_host.batch
    return parameters, shown, len(module_host.validation.labels), module_host.batch
