"""N custom hosts with optimisers of their families, trained one after the other in loops around attached modules.

A host is what a ``Grower`` makes of a module, so seeds act and learn by the same code as in somebody else's loop.
Shapes: N hosts, S slots.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn.utils import clip_grad_norm_
from torch.optim import Optimizer

from simic.contracts.errors import ConfigError
from simic.hosts.custom.attached import AttachedHost
from simic.hosts.custom.evaluation import join
from simic.hosts.custom.forward import RngStream, forked_rng, seed_generators
from simic.hosts.custom.host import CustomHost
from simic.hosts.custom.inspect import layer_columns
from simic.hosts.custom.owner_snapshot import OwnerSnapshot
from simic.hosts.custom.training import batch_of, sample_order
from simic.hosts.interfaces import Blueprint, DataSplit, Measurement, Memory, SeedAssignment, TrainingRecord

__all__ = ["OptimisedHosts"]

_ALONE = np.ones(1, dtype=bool)


class OptimisedHosts:
    """A ``HostBatch`` of modules that train with the optimisers that their families make."""

    def __init__(self, hosts: Sequence[CustomHost], blueprints: Sequence[Blueprint], names: Sequence[str]) -> None:
        """Attach to hosts of one layout, which ``names`` name in messages.

        Raises:
            ConfigError: if a blueprint widens, or a layer or an optimiser cannot be used.
        """
        if any(blueprint.is_widening for blueprint in blueprints):
            raise ConfigError(
                f"{names[0]}: widening seeds learn with SGD only; leave them out of the family's blueprints, or leave "
                "out optimizer"
            )
        self.blueprints = blueprints
        self._hosts = [_attach(host, blueprints, who) for host, who in zip(hosts, names, strict=True)]
        self.topology = self._hosts[0][0].topology

    def layers(self) -> dict[str, NDArray[Any]]:
        return layer_columns([host.host.spec.layers for host, _ in self._hosts])

    def parameters(self) -> NDArray[np.int64]:
        return np.concatenate([host.parameters() for host, _ in self._hosts])

    def germinate(self, host: int, slot: int, number: int, blueprint: int) -> None:
        self._hosts[host][0].germinate(0, slot, number, blueprint)

    def clear(self, where: NDArray[np.bool_]) -> None:
        for row, (host, _) in enumerate(self._hosts):
            host.clear(where[row : row + 1])

    def is_clear(self) -> NDArray[np.bool_]:
        return np.concatenate([host.is_clear() for host, _ in self._hosts])

    def probe(self, assignment: SeedAssignment, epoch: int) -> NDArray[np.float64]:
        return np.concatenate([host.probe(_row(assignment, row), epoch) for row, (host, _) in enumerate(self._hosts)])

    def train(self, assignment: SeedAssignment, epoch: int) -> TrainingRecord:
        records = [_train(*pair, _row(assignment, row), epoch) for row, pair in enumerate(self._hosts)]
        return TrainingRecord(*(np.concatenate(columns) for columns in zip(*records, strict=True)))

    def evaluate(self, part: DataSplit, assignment: SeedAssignment, *, leave_one_out: bool = True) -> Measurement:
        return join(
            [
                host.evaluate(part, _row(assignment, row), leave_one_out=leave_one_out)
                for row, (host, _) in enumerate(self._hosts)
            ]
        )

    def weight_norms(self) -> NDArray[np.float64]:
        return np.concatenate([host.weight_norms() for host, _ in self._hosts])

    def is_finite(self) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
        hosts, seeds = zip(*(host.is_finite() for host, _ in self._hosts), strict=True)
        return np.concatenate(hosts), np.concatenate(seeds)

    def memory(self) -> Memory:
        return Memory(*map(sum, zip(*(host.memory() for host, _ in self._hosts), strict=True)))

    def snapshot(self) -> list[OwnerSnapshot]:
        """Return what will hold copies of all tensors that training changes, taken when training begins."""
        return [host.snapshot() for host, _ in self._hosts]

    def restore(self, snapshot: Sequence[OwnerSnapshot], rows: NDArray[np.bool_]) -> None:
        for row in np.flatnonzero(rows).tolist():
            self._hosts[row][0].restore(snapshot[row], _ALONE)

    def clear_momentum(self, rows: NDArray[np.bool_]) -> None:
        for row in np.flatnonzero(rows).tolist():
            self._hosts[row][0].clear_momentum(_ALONE)


def _attach(host: CustomHost, blueprints: Sequence[Blueprint], who: str) -> tuple[AttachedHost, Optimizer]:
    if host.spec.optimizer is None:
        raise RuntimeError("an optimised host needs an optimizer")
    optimiser = host.spec.optimizer(host.module)
    if not isinstance(optimiser, Optimizer):
        raise ConfigError(f"{who}: optimizer must make a torch.optim.Optimizer, found {type(optimiser).__name__}")
    spec = replace(host.spec, module=host.module)
    attached = AttachedHost(spec, host.key, optimiser, host.loss, blueprints, has_test=True, who=who)
    return attached, optimiser


def _train(host: AttachedHost, optimiser: Optimizer, assignment: SeedAssignment, epoch: int) -> TrainingRecord:
    """Train one epoch as its owner would: the gradient of network and active seeds is clipped together."""
    own = host.host
    module, loss = own.module, own.loss
    host.begin(assignment, epoch)
    module.train()
    rows = sample_order(own, epoch)
    with forked_rng(rows.device), torch.enable_grad():
        for step in range(own.steps):
            inputs, labels = batch_of(own, rows, step)
            optimiser.zero_grad()
            # The seeds' own passes, within the step, begin with the random numbers of this one.
            seed_generators(own.key, RngStream.TRAINING, epoch, step)
            logits = module(inputs.clone())
            host.check_batch(logits, labels)
            value = loss(logits, labels)
            host.note(logits, labels, value)
            value.backward()  # type: ignore[no-untyped-call]
            clip_grad_norm_(module.parameters(), own.spec.clip_norm)
            optimiser.step()
    return host.finish()


def _row(assignment: SeedAssignment, row: int) -> SeedAssignment:
    mine = slice(row, row + 1)
    return SeedAssignment(assignment.blueprint[mine], assignment.alpha[mine], assignment.is_incubating[mine])
