"""N hosts around users' own modules, trained one after the other: the ``HostBatch`` for any ``torch.nn.Module``.

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
from simic.hosts.catalogue import load_module_family
from simic.hosts.modules.checks import check_unshared
from simic.hosts.modules.dry_run import is_linear
from simic.hosts.modules.living import State, bring_up
from simic.hosts.modules.measuring import join, measure
from simic.hosts.modules.passes import Grown
from simic.hosts.modules.training import EpochRecord, Seedling, probe_seed, train_host
from simic.hosts.protocols import Blueprint, Measurement, Memory, Part, Roles, TrainingRecord
from simic.hosts.stacked.weights import SeedStore, birth_of_seed, finite_rows

__all__ = ["ModuleHosts", "Snapshot"]


class Snapshot(NamedTuple):
    """Everything training changes."""

    hosts: tuple[State, ...]
    seeds: SeedStore


class ModuleHosts:
    """See ``HostBatch``."""

    def __init__(self, hosts: Sequence[HostIdentity], blueprints: Sequence[Blueprint]) -> None:
        names = [f"family {host.family!r}, host {host.key}" for host in hosts]
        self.hosts = [
            bring_up(load_module_family(host.family), host.key, who) for host, who in zip(hosts, names, strict=True)
        ]
        check_unshared([host.spec.module for host in self.hosts], names)
        for host, who in zip(self.hosts[1:], names[1:], strict=True):
            if host.wiring != self.hosts[0].wiring:
                raise ConfigError(
                    f"{who}: its layers differ from those of {names[0]}; hosts of one family must be alike in "
                    f"everything but weights and samples: expected {self.hosts[0].wiring}, found {host.wiring}"
                )
        self.blueprints = blueprints
        self.anatomy = self.hosts[0].wiring.anatomy
        sizes = [one.parameters(site) for one in blueprints for site in self.anatomy.sites if one.suits(site)]
        self.seeds = SeedStore.zeros(len(hosts), len(self.anatomy.sites), max([1, *sizes]))

    def layers(self) -> dict[str, NDArray[Any]]:
        """See ``HostBatch``."""
        specs = [host.spec.layers for host in self.hosts]
        widths = [[np.nan if one.hidden_width is None else one.hidden_width for one in row] for row in specs]
        return {
            "hidden_width": np.array(widths, dtype=np.float64),
            "is_linear": np.array([[is_linear(one) for one in row] for row in specs]),
        }

    def germinate(self, host: int, slot: int, number: int, blueprint: int) -> None:
        """See ``HostBatch``; a blueprint that cannot grow in the slot is a ConfigError."""
        site, chosen = self.anatomy.sites[slot], self.blueprints[blueprint]
        if not chosen.suits(site):
            raise ConfigError(f"host {self.hosts[host].key}, slot {slot}: {type(chosen).__name__} does not suit {site}")
        born = birth_of_seed(self.hosts[host].key, slot, number, chosen, site)
        self.seeds.parameters[host, slot, : len(born)] = born
        self.seeds.momentum[host, slot] = 0.0

    def clear(self, where: NDArray[np.bool_]) -> None:
        """See ``HostBatch``."""
        self.seeds.clear(where)

    def is_clear(self) -> NDArray[np.bool_]:
        """See ``HostBatch``."""
        return self.seeds.is_clear()

    def probe(self, roles: Roles, epoch: int) -> NDArray[np.float64]:
        """See ``HostBatch``."""
        norms = np.full(roles.alpha.shape, np.nan)
        for row, host in enumerate(self.hosts):
            seeds = list(self._seedlings(roles, row))
            for seed in seeds:
                if not seed.is_felt and seed.learns:
                    norms[row, seed.slot] = probe_seed(host, seeds, seed, epoch)
        return norms

    def train(self, roles: Roles, epoch: int) -> TrainingRecord:
        """See ``HostBatch``."""
        gradient, health = np.full((2, *roles.alpha.shape), np.nan)
        records: list[EpochRecord] = []
        for row, host in enumerate(self.hosts):
            seeds = list(self._seedlings(roles, row))
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
        )

    def evaluate(self, part: Part, roles: Roles, *, leave_one_out: bool = True) -> Measurement:
        """See ``HostBatch``."""
        measured = []
        for row, host in enumerate(self.hosts):
            felt = {
                slot: Grown(self.blueprints[index], self._values(self.seeds.parameters, row, slot, index), alpha)
                for slot, index, alpha in _present(roles, row)
                if alpha > 0
            }
            measured.append(measure(host, felt, part, leave_one_out=leave_one_out))
        return join(measured)

    def weight_norms(self) -> NDArray[np.float64]:
        """See ``HostBatch``."""
        return np.array([host.weight_norms() for host in self.hosts])

    def is_finite(self) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
        """See ``HostBatch``."""
        return np.array([host.is_finite() for host in self.hosts]), finite_rows(self.seeds, 2)

    def memory(self) -> Memory:
        """See ``HostBatch``."""
        parameters = sum(host.state_bytes for host in self.hosts) + sum(one.nbytes for one in self.seeds)
        return Memory(sum(host.sample_bytes for host in self.hosts), parameters, snapshot=parameters)

    def snapshot(self) -> Snapshot:
        """See ``HostBatch``; a module's buffers are part of it."""
        return Snapshot(tuple(host.remember() for host in self.hosts), self.seeds.copy())

    def clear_momentum(self, rows: NDArray[np.bool_]) -> None:
        """See ``HostBatch``."""
        for row in np.flatnonzero(rows).tolist():
            for momentum in self.hosts[row].momentum.values():
                momentum.zero_()
            self.seeds.momentum[row] = 0.0

    def restore(self, snapshot: Snapshot, rows: NDArray[np.bool_]) -> None:
        """See ``HostBatch``."""
        for row in np.flatnonzero(rows).tolist():
            self.hosts[row].recall(snapshot.hosts[row])
            for mine, theirs in zip(self.seeds, snapshot.seeds, strict=True):
                mine[row] = theirs[row]

    def _seedlings(self, roles: Roles, row: int) -> Iterator[Seedling]:
        """The seeds of one host that take part in training."""
        for slot, index, alpha in _present(roles, row):
            parameters = self._values(self.seeds.parameters, row, slot, index)
            momentum = self._values(self.seeds.momentum, row, slot, index)
            yield Seedling(slot, self.blueprints[index], alpha, alpha > 0, parameters.requires_grad_(), momentum)

    def _values(self, store: Tensor, row: int, slot: int, blueprint: int) -> Tensor:
        """A copy [1, P] in memory of its own: kernels round by alignment, which a place in the store would decide."""
        size = self.blueprints[blueprint].parameters(self.anatomy.sites[slot])
        return store[row, slot, :size].clone().unsqueeze(0)


def _present(roles: Roles, row: int) -> Iterator[tuple[int, int, float]]:
    """(slot, blueprint, alpha) of one host's seeds that are felt or incubate; 0 is the alpha of the latter."""
    takes_part = (roles.alpha[row] > 0) | roles.is_incubating[row]
    for slot in np.flatnonzero(takes_part).tolist():
        yield slot, int(roles.blueprint[row, slot]), float(roles.alpha[row, slot])
