"""N hosts of one trunk with stacked parameters: the common part of ``HostBatch``, and the compacted form.

The compacted form computes active and incubating seeds only and suits CPUs; the masked form keeps all shapes constant
and suits GPUs.
Shapes: N hosts, S slots, L layers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from simic.contracts.state import HostIdentity, LayerKind
from simic.hosts.batched.data import PoolOf
from simic.hosts.batched.dataset import HostDataset, recipes_of
from simic.hosts.batched.evaluation import evaluate
from simic.hosts.batched.seeds import PackedSeeds, pack_seeds, unpack_seeds
from simic.hosts.batched.training import EpochBatches, StepSizes, layer_norms, part_squares, probe_seeds, train_epoch
from simic.hosts.batched.trunk import Trunk, initial_weights, live_parameters
from simic.hosts.batched.weights import HostWeights, SeedStore, finite_rows, initial_seed
from simic.hosts.interfaces import Blueprint, DataSplit, HostRecipe, Measurement, Memory, SeedAssignment, TrainingRecord

__all__ = ["BatchedHosts", "CompactedHosts", "Snapshot"]


class Snapshot(NamedTuple):
    """All parameters and momenta, on the CPU."""

    weights: HostWeights
    momentum: HostWeights
    seeds: SeedStore


class BatchedHosts:
    """The common part of both forms; tensors may be on any device, results are on the CPU."""

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
        self.topology = self.trunk.topology
        self.dataset = HostDataset(self.keys, recipes, self.trunk, pool_of)
        self.sizes = StepSizes.of(recipes)
        self._parameters = live_parameters(self.trunk, len(hosts))
        scales = np.array([recipe.layer_scales for recipe in recipes], dtype=np.float32)
        self.weights = initial_weights(self.trunk, self.keys, scales)
        self.momentum = HostWeights.zeros(len(hosts), [part.shape for part in self.trunk.parts])
        sizes = [
            blueprint.parameters(site)
            for blueprint in blueprints
            for site in self.topology.sites
            if blueprint.suits(site)
        ]
        self.seeds = SeedStore.zeros(len(hosts), len(self.topology.sites), max([1, *sizes]))

    def layers(self) -> dict[str, NDArray[Any]]:
        shape = (len(self.keys), len(self.topology.kinds))
        hidden, is_linear = np.full(shape, np.nan), np.zeros(shape, dtype=bool)
        is_block = np.array([kind is LayerKind.BLOCK for kind in self.topology.kinds])
        hidden[:, is_block] = self.trunk.hidden
        is_linear[:, 0], is_linear[:, -1] = [recipe.is_linear for recipe in self.dataset.recipes], True
        return {"hidden_width": hidden, "is_linear": is_linear}

    def parameters(self) -> NDArray[np.int64]:
        return self._parameters

    def germinate(self, host: int, slot: int, number: int, blueprint: int) -> None:
        site = self.topology.sites[slot]
        born = initial_seed(int(self.keys[host]), slot, number, self.blueprints[blueprint], site)
        self.seeds.parameters[host, slot, : len(born)] = born
        self.seeds.momentum[host, slot] = 0.0

    def clear(self, where: NDArray[np.bool_]) -> None:
        self.seeds.clear(where)

    def is_clear(self) -> NDArray[np.bool_]:
        return self.seeds.is_clear()

    def weight_norms(self) -> NDArray[np.float64]:
        return layer_norms(self.trunk, part_squares(self.trunk, self.weights))

    def is_finite(self) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
        hosts = finite_rows([*self.weights.parts, *self.momentum.parts], 1)
        return hosts, finite_rows(self.seeds, 2)

    def memory(self) -> Memory:
        tensors = (self.weights.flat, self.momentum.flat, *self.seeds)
        parameters = sum(tensor.nbytes for tensor in tensors)
        return Memory(self.dataset.nbytes, parameters, snapshot=parameters)

    def snapshot(self) -> Snapshot:
        return Snapshot(self.weights.copy(), self.momentum.copy(), self.seeds.copy())

    def clear_momentum(self, rows: NDArray[np.bool_]) -> None:
        chosen = torch.from_numpy(np.flatnonzero(rows)).to(self.seeds.momentum.device)
        for tensor in (*self.momentum.parts, self.seeds.momentum):
            tensor[chosen] = 0.0

    def restore(self, snapshot: Snapshot, rows: NDArray[np.bool_]) -> None:
        chosen = torch.from_numpy(np.flatnonzero(rows))
        self.weights.restore(snapshot.weights, chosen)
        self.momentum.restore(snapshot.momentum, chosen)
        for mine, theirs in zip(self.seeds, snapshot.seeds, strict=True):
            mine[chosen] = theirs[chosen].to(mine.device)


class CompactedHosts(BatchedHosts):
    """A ``HostBatch`` that computes active and incubating seeds only."""

    _prepared: tuple[int, EpochBatches] | None = None
    """Batches of the most recently probed epoch; training reuses them."""

    def probe(self, assignment: SeedAssignment, epoch: int) -> NDArray[np.float64]:
        packed, batches = self._gather(assignment), self.dataset.batches(epoch)
        self._prepared = epoch, batches
        noisy = batches._replace(noise=self.dataset.noise(packed, epoch))
        return probe_seeds(self.trunk, self.weights, packed, noisy)

    def train(self, assignment: SeedAssignment, epoch: int) -> TrainingRecord:
        packed = self._gather(assignment)
        prepared, self._prepared = self._prepared, None
        batches = prepared[1] if prepared is not None and prepared[0] == epoch else self.dataset.batches(epoch)
        batches = batches._replace(noise=self.dataset.noise(packed, epoch))
        record = train_epoch(self.trunk, self.weights, self.momentum, packed, batches, self.sizes)
        unpack_seeds(packed, self.seeds)
        return record

    def _gather(self, assignment: SeedAssignment) -> PackedSeeds:
        return pack_seeds(self.seeds, assignment, self.blueprints, self.topology.sites, in_training=True)

    def evaluate(self, part: DataSplit, assignment: SeedAssignment, *, leave_one_out: bool = True) -> Measurement:
        packed = pack_seeds(
            self.seeds, assignment, self.blueprints, self.topology.sites, in_training=False, leave_one_out=leave_one_out
        )
        return evaluate(self.trunk, self.weights, packed, self.dataset.evaluation_set(part))
