"""Batched hosts in masked form, for GPUs: shapes never change, so a whole epoch is one CUDA graph.

All allowed seeds are computed without any branch. Parameters, momenta and samples stay on the device; a call sends the
seed assignment and the sample order there, and reads one table back.
Shapes: N hosts, S slots, L layers, K blueprints.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from simic.contracts.state import HostIdentity
from simic.hosts import rng
from simic.hosts.batched.data import PoolOf
from simic.hosts.batched.dataset import TrainingSet
from simic.hosts.batched.evaluation import EvaluationSet
from simic.hosts.batched.host_batch import BatchedHosts
from simic.hosts.batched.masked.cuda_graph import Replayed
from simic.hosts.batched.masked.evaluation import evaluate, measurement_width
from simic.hosts.batched.masked.forward import SeedTensors, options_of
from simic.hosts.batched.masked.training import Buffers, probe_seeds, record_width, train_epoch
from simic.hosts.batched.sizes import BATCH, STEPS
from simic.hosts.batched.trunk import Trunk, move_constants
from simic.hosts.interfaces import Blueprint, DataSplit, Measurement, SeedAssignment, TrainingRecord
from simic.hosts.rng import Purpose

__all__ = ["MaskedHosts"]


class MaskedHosts(BatchedHosts):
    """A ``HostBatch`` of constant shapes; only the blueprints ``offered`` can participate."""

    def __init__(
        self,
        hosts: Sequence[HostIdentity],
        blueprints: Sequence[Blueprint],
        kind: type[Trunk],
        pool_of: PoolOf | None = None,
        *,
        offered: Sequence[int],
        device: torch.device,
    ) -> None:
        super().__init__(hosts, blueprints, kind, pool_of)
        self._device = device
        self.weights, self.momentum = self.weights.on(device), self.momentum.on(device)
        self.seeds = self.seeds.on(device)
        move_constants(self.trunk, device)
        sites, layers = self.topology.sites, len(self.topology.kinds)
        options = options_of(blueprints, offered, sites, device)
        self._sizes = np.full((len(sites), len(blueprints)), -1, dtype=np.int64)
        for slot, row in enumerate(options):
            for option in row:
                self._sizes[slot, option.number] = len(option.parameters)
        self._buffers = Buffers(
            self.trunk,
            options,
            self.weights,
            self.momentum,
            self.seeds,
            SeedTensors.empty(len(hosts), len(sites), device),
            _moved_training(self.dataset.training, device),
            torch.zeros(STEPS, len(hosts) * BATCH, dtype=torch.int64, device=device),
            torch.zeros(len(hosts), len(sites), dtype=torch.int64, device=device),
            torch.from_numpy(self.sizes.rate).to(device),
            None if self.sizes.kept is None else torch.from_numpy(self.sizes.kept).to(device),
        )
        widths = (record_width(layers, len(sites)), measurement_width(layers, len(sites)), len(sites))
        self._record, self._measured, self._probed = (
            torch.zeros(len(hosts), width, dtype=torch.float64, device=device) for width in widths
        )
        self._prepared_epoch = -1
        validation = _moved_set(self.dataset.validation, device)
        changing = [self.weights.flat, self.momentum.flat, *self.seeds]
        self._train = Replayed(partial(train_epoch, self._buffers, self._record), device, changing)
        self._probe = Replayed(partial(probe_seeds, self._buffers, self._probed), device)
        self._validate = Replayed(
            partial(evaluate, self._buffers, validation, self._measured, leave_one_out=True), device
        )
        self._validation = validation

    def probe(self, assignment: SeedAssignment, epoch: int) -> NDArray[np.float64]:
        self._prepare(assignment, epoch)
        self._probe()
        return _read(self._probed)

    def train(self, assignment: SeedAssignment, epoch: int) -> TrainingRecord:
        self._prepare(assignment, epoch)
        self._train()
        layers, slots = len(self.topology.kinds), len(self.topology.sites)
        once, layer, seed, health = np.split(_read(self._record), np.cumsum([2, layers, slots]), axis=1)
        return TrainingRecord(
            once[:, 0], once[:, 1], layer, seed, health, self.dataset.sample_counts.astype(np.float64)
        )

    def evaluate(self, part: DataSplit, assignment: SeedAssignment, *, leave_one_out: bool = True) -> Measurement:
        # Only validation is captured: the test split is measured once per episode.
        self._buffers.seed_tensors.set(assignment, self._sizes)
        if part is DataSplit.VALIDATION and leave_one_out:
            self._validate()
        else:
            data = (
                self._validation
                if part is DataSplit.VALIDATION
                else _moved_set(self.dataset.evaluation_set(part), self._device)
            )
            evaluate(self._buffers, data, self._measured, leave_one_out=leave_one_out)
        layers, slots = len(self.topology.kinds), len(self.topology.sites)
        once, spread, dimension, without, error, risk = np.split(
            _read(self._measured), np.cumsum([3, layers, layers, slots, slots]), axis=1
        )
        return Measurement(once[:, 0], once[:, 1], without, error, spread, dimension, risk, once[:, 2])

    def _prepare(self, assignment: SeedAssignment, epoch: int) -> None:
        """Fill the buffers that an epoch reads."""
        self._buffers.seed_tensors.set(assignment, self._sizes)
        if epoch == self._prepared_epoch:
            return
        self._buffers.order.copy_(self.dataset.order(epoch))
        for slot, mine in enumerate(self._buffers.streams.unbind(dim=1)):
            words = rng.streams(self.keys, Purpose.DROPOUT, epoch, slot)
            mine.copy_(torch.from_numpy(words.view(np.int64)))
        self._prepared_epoch = epoch


def _read(table: Tensor) -> NDArray[np.float64]:
    """Copy a result table to the CPU."""
    values: NDArray[np.float64] = table.to("cpu", copy=True).numpy()
    return values


def _moved_training(data: TrainingSet, device: torch.device) -> TrainingSet:
    return TrainingSet(data.inputs.to(device), data.labels.to(device), _moved(data.gains, device))


def _moved_set(data: EvaluationSet, device: torch.device) -> EvaluationSet:
    return EvaluationSet(data.inputs.to(device), data.labels.to(device), _moved(data.gains, device), data.valid)


def _moved(gains: Sequence[Tensor | None], device: torch.device) -> tuple[Tensor | None, ...]:
    return tuple(None if gain is None else gain.to(device) for gain in gains)
