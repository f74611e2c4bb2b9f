"""N hosts of one trunk, stacked: all of ``HostBatch`` but the passes, of which there are two forms.

``compacted`` computes only what takes part and suits CPUs; ``masked`` keeps every shape the same and suits GPUs.
Shapes: N hosts, S slots, L layers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from simic.contracts.state import HostIdentity, LayerKind
from simic.hosts.protocols import Blueprint, HostRecipe, Memory
from simic.hosts.stacked.cohort import Cohort, recipes_of
from simic.hosts.stacked.data import PoolOf
from simic.hosts.stacked.training import layer_norms, part_squares
from simic.hosts.stacked.trunk import Trunk, birth_of_hosts
from simic.hosts.stacked.weights import HostWeights, SeedStore, birth_of_seed, finite_rows

__all__ = ["Snapshot", "StackedHosts"]


class Snapshot(NamedTuple):
    """Everything training changes, on the CPU."""

    weights: HostWeights
    momentum: HostWeights
    seeds: SeedStore


class StackedHosts:
    """What both forms share, see ``HostBatch``; tensors may lie on any device, what is returned is on the CPU."""

    def __init__(
        self,
        hosts: Sequence[HostIdentity],
        blueprints: Sequence[Blueprint],
        kind: type[Trunk],
        pool_of: PoolOf | None = None,
    ) -> None:
        recipes: list[HostRecipe] = recipes_of(hosts)
        self.keys: NDArray[np.int64] = np.array([host.key for host in hosts], dtype=np.int64)
        self.blueprints = blueprints
        self.trunk = kind(recipes)
        self.anatomy = self.trunk.anatomy
        self.cohort = Cohort(self.keys, recipes, self.trunk, pool_of)
        self.weights = birth_of_hosts(self.trunk, self.keys)
        self.momentum = HostWeights.zeros(len(hosts), [part.shape for part in self.trunk.parts])
        sizes = [one.parameters(site) for one in blueprints for site in self.anatomy.sites if one.suits(site)]
        self.seeds = SeedStore.zeros(len(hosts), len(self.anatomy.sites), max([1, *sizes]))

    def layers(self) -> dict[str, NDArray[Any]]:
        """See ``HostBatch``."""
        shape = (len(self.keys), len(self.anatomy.kinds))
        hidden, is_linear = np.full(shape, np.nan), np.zeros(shape, dtype=bool)
        is_block = np.array([kind is LayerKind.BLOCK for kind in self.anatomy.kinds])
        hidden[:, is_block] = self.trunk.hidden
        is_linear[:, 0], is_linear[:, -1] = [recipe.is_linear for recipe in self.cohort.recipes], True
        return {"hidden_width": hidden, "is_linear": is_linear}

    def germinate(self, host: int, slot: int, number: int, blueprint: int) -> None:
        """See ``HostBatch``."""
        site = self.anatomy.sites[slot]
        born = birth_of_seed(int(self.keys[host]), slot, number, self.blueprints[blueprint], site)
        self.seeds.parameters[host, slot, : len(born)] = born
        self.seeds.momentum[host, slot] = 0.0

    def clear(self, where: NDArray[np.bool_]) -> None:
        """See ``HostBatch``."""
        self.seeds.clear(where)

    def is_clear(self) -> NDArray[np.bool_]:
        """See ``HostBatch``."""
        return self.seeds.is_clear()

    def weight_norms(self) -> NDArray[np.float64]:
        """See ``HostBatch``."""
        return layer_norms(self.trunk, part_squares(self.weights))

    def is_finite(self) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
        """See ``HostBatch``."""
        hosts = finite_rows([*self.weights.parts, *self.momentum.parts], 1)
        return hosts, finite_rows(self.seeds, 2)

    def memory(self) -> Memory:
        """See ``HostBatch``."""
        tensors = (self.weights.flat, self.momentum.flat, *self.seeds)
        parameters = sum(tensor.nbytes for tensor in tensors)
        return Memory(self.cohort.nbytes, parameters, snapshot=parameters)

    def snapshot(self) -> Snapshot:
        """See ``HostBatch``."""
        return Snapshot(self.weights.copy(), self.momentum.copy(), self.seeds.copy())

    def clear_momentum(self, rows: NDArray[np.bool_]) -> None:
        """See ``HostBatch``."""
        chosen = torch.from_numpy(np.flatnonzero(rows)).to(self.seeds.momentum.device)
        for tensor in (*self.momentum.parts, self.seeds.momentum):
            tensor[chosen] = 0.0

    def restore(self, snapshot: Snapshot, rows: NDArray[np.bool_]) -> None:
        """See ``HostBatch``."""
        chosen = torch.from_numpy(np.flatnonzero(rows))
        self.weights.restore(snapshot.weights, chosen)
        self.momentum.restore(snapshot.momentum, chosen)
        for mine, theirs in zip(self.seeds, snapshot.seeds, strict=True):
            mine[chosen] = theirs[chosen].to(mine.device)
