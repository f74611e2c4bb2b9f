"""N custom hosts, trained one after the other: the ``HostBatch`` of any ``torch.nn.Module``.

Shapes: N hosts, S slots, L layers, P parameters of a seed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from simic.contracts.errors import ConfigError
from simic.contracts.state import HostIdentity
from simic.hosts.batched.weights import SeedStore, finite_rows, initial_seed
from simic.hosts.custom.checks import check_unshared
from simic.hosts.custom.evaluation import join, measure
from simic.hosts.custom.forward import ActiveSeed
from simic.hosts.custom.host import CustomHost, HostState, build_host
from simic.hosts.custom.inspect import layer_columns
from simic.hosts.custom.optimised import OptimisedHosts
from simic.hosts.custom.training import CustomSeed, EpochRecord, probe_seed, train_host
from simic.hosts.interfaces import (
    Blueprint,
    DataSplit,
    HostBatch,
    Measurement,
    Memory,
    SeedAssignment,
    TrainingRecord,
)
from simic.hosts.plugins import load_module_family

__all__ = ["CustomHosts", "CustomSnapshot", "make_custom_hosts"]


class CustomSnapshot(NamedTuple):
    """All tensors that training changes."""

    hosts: tuple[HostState, ...]
    seeds: SeedStore


def make_custom_hosts(hosts: Sequence[HostIdentity], blueprints: Sequence[Blueprint]) -> HostBatch:
    """Build the hosts, which train with SGD, or with the optimisers that their families make.

    Raises:
        ConfigError: if module, layers or settings of a host are invalid, or hosts differ in their layers.
        DatasetError: if samples are invalid.
    """
    names = [f"family {host.family!r}, host {host.key}" for host in hosts]
    # Without a widening blueprint, hosts may differ in what reads their layers, such as hidden widths of blocks.
    widens = any(blueprint.is_widening for blueprint in blueprints)
    built = [
        build_host(load_module_family(host.family), host.key, who, with_readers=widens)
        for host, who in zip(hosts, names, strict=True)
    ]
    check_unshared([host.spec.module for host in built], names)
    for host, who in zip(built[1:], names[1:], strict=True):
        if host.layout != built[0].layout:
            raise ConfigError(
                f"{who}: its layers differ from those of {names[0]}; hosts of one family must be alike in "
                "everything but weights and samples, and in what reads their layers if the set offers a widening "
                f"blueprint: expected {built[0].layout}, found {host.layout}"
            )
    own = [host.spec.optimizer is not None for host in built]
    if any(own) and not all(own):
        missing = names[own.index(False)]
        raise ConfigError(f"{missing}: it has no optimizer, and others have one; hosts of one family must agree in it")
    return OptimisedHosts(built, blueprints, names) if all(own) else CustomHosts(built, blueprints)


class CustomHosts:
    """A ``HostBatch`` of modules that train with SGD."""

    def __init__(self, hosts: Sequence[CustomHost], blueprints: Sequence[Blueprint]) -> None:
        """Take hosts of one layout."""
        self.hosts, self.blueprints = list(hosts), blueprints
        self.topology = self.hosts[0].layout.topology
        sizes = [
            blueprint.parameters(site)
            for blueprint in blueprints
            for site in self.topology.sites
            if blueprint.suits(site)
        ]
        self.seeds = SeedStore.zeros(len(hosts), len(self.topology.sites), max([1, *sizes]))

    def layers(self) -> dict[str, NDArray[Any]]:
        return layer_columns([host.spec.layers for host in self.hosts])

    def parameters(self) -> NDArray[np.int64]:
        return np.array([host.parameters for host in self.hosts], dtype=np.int64)

    def germinate(self, host: int, slot: int, number: int, blueprint: int) -> None:
        """Initialise a seed; raise ConfigError if the blueprint does not suit the slot."""
        site, chosen = self.topology.sites[slot], self.blueprints[blueprint]
        if not chosen.suits(site):
            raise ConfigError(f"host {self.hosts[host].key}, slot {slot}: {type(chosen).__name__} does not suit {site}")
        born = initial_seed(self.hosts[host].key, slot, number, chosen, site)
        self.seeds.parameters[host, slot, : len(born)] = born
        self.seeds.momentum[host, slot] = 0.0

    def clear(self, where: NDArray[np.bool_]) -> None:
        self.seeds.clear(where)

    def is_clear(self) -> NDArray[np.bool_]:
        return self.seeds.is_clear()

    def probe(self, assignment: SeedAssignment, epoch: int) -> NDArray[np.float64]:
        norms = np.full(assignment.alpha.shape, np.nan)
        for row, host in enumerate(self.hosts):
            seeds = list(self._seeds_of(assignment, row))
            for seed in seeds:
                if not seed.is_active and seed.learns:
                    norms[row, seed.slot] = probe_seed(host, seeds, seed, epoch)
        return norms

    def train(self, assignment: SeedAssignment, epoch: int) -> TrainingRecord:
        gradient, health = np.full((2, *assignment.alpha.shape), np.nan)
        records: list[EpochRecord] = []
        for row, host in enumerate(self.hosts):
            seeds = list(self._seeds_of(assignment, row))
            records.append(train_host(host, seeds, epoch))
            for seed in seeds:
                if seed.learns:
                    gradient[row, seed.slot] = seed.norm_sum / host.steps
                    health[row, seed.slot] = seed.good_steps / host.steps
                    width = seed.parameters.shape[1]
                    self.seeds.parameters[row, seed.slot, :width] = seed.parameters[0].detach()
                    self.seeds.momentum[row, seed.slot, :width] = seed.momentum[0]
        return TrainingRecord(
            loss=np.array([record.loss for record in records]),
            accuracy=np.array([record.accuracy for record in records]),
            layer_gradient=np.array([record.layer_gradient for record in records]),
            seed_gradient=gradient,
            seed_health=health,
            samples=np.array([host.steps * host.batch for host in self.hosts], dtype=np.float64),
        )

    def evaluate(self, part: DataSplit, assignment: SeedAssignment, *, leave_one_out: bool = True) -> Measurement:
        measured = []
        for row, host in enumerate(self.hosts):
            active = {
                slot: ActiveSeed(self.blueprints[index], self._values(self.seeds.parameters, row, slot, index), alpha)
                for slot, index, alpha in _participating(assignment, row)
                if alpha > 0
            }
            measured.append(measure(host, active, part, leave_one_out=leave_one_out))
        return join(measured)

    def weight_norms(self) -> NDArray[np.float64]:
        return np.array([host.weight_norms() for host in self.hosts])

    def is_finite(self) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
        return np.array([host.is_finite() for host in self.hosts]), finite_rows(self.seeds, 2)

    def memory(self) -> Memory:
        parameters = sum(host.state_bytes for host in self.hosts) + sum(array.nbytes for array in self.seeds)
        return Memory(sum(host.sample_bytes for host in self.hosts), parameters, snapshot=parameters)

    def snapshot(self) -> CustomSnapshot:
        """Return a copy of all parameters, buffers and momenta."""
        return CustomSnapshot(tuple(host.snapshot() for host in self.hosts), self.seeds.copy())

    def clear_momentum(self, rows: NDArray[np.bool_]) -> None:
        for row in np.flatnonzero(rows).tolist():
            for momentum in self.hosts[row].momentum.values():
                momentum.zero_()
            self.seeds.momentum[row] = 0.0

    def restore(self, snapshot: CustomSnapshot, rows: NDArray[np.bool_]) -> None:
        for row in np.flatnonzero(rows).tolist():
            self.hosts[row].restore(snapshot.hosts[row])
            for mine, theirs in zip(self.seeds, snapshot.seeds, strict=True):
                mine[row] = theirs[row]

    def _seeds_of(self, assignment: SeedAssignment, row: int) -> Iterator[CustomSeed]:
        """Yield the participating seeds of one host."""
        for slot, index, alpha in _participating(assignment, row):
            parameters = self._values(self.seeds.parameters, row, slot, index)
            momentum = self._values(self.seeds.momentum, row, slot, index)
            yield CustomSeed(slot, self.blueprints[index], alpha, alpha > 0, parameters.requires_grad_(), momentum)

    def _values(self, store: Tensor, row: int, slot: int, blueprint: int) -> Tensor:
        """Return a copy [1, P]: rounding depends on alignment, which must not depend on the host's row in the store."""
        size = self.blueprints[blueprint].parameters(self.topology.sites[slot])
        return store[row, slot, :size].clone().unsqueeze(0)


def _participating(assignment: SeedAssignment, row: int) -> Iterator[tuple[int, int, float]]:
    """Yield (slot, blueprint, alpha) of one host's active and incubating seeds; the latter have alpha 0."""
    takes_part = (assignment.alpha[row] > 0) | assignment.is_incubating[row]
    for slot in np.flatnonzero(takes_part).tolist():
        yield slot, int(assignment.blueprint[row, slot]), float(assignment.alpha[row, slot])
