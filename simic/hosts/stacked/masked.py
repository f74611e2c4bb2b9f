"""Stacked hosts in masked form, for GPUs: shapes never change, so a whole epoch is one replayed recording.

It computes everything that might take part and decides nothing on the way. Parameters, momenta and samples live on the
device; of a call only roles and the order of samples go there, and one table comes back.
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
from simic.hosts import counter_rng
from simic.hosts.counter_rng import Purpose
from simic.hosts.protocols import Blueprint, Measurement, Part, Roles, TrainingRecord
from simic.hosts.stacked.anatomy import BATCH, STEPS
from simic.hosts.stacked.base import StackedHosts
from simic.hosts.stacked.cohort import TrainingSet
from simic.hosts.stacked.cuda_graph import Replayed
from simic.hosts.stacked.data import PoolOf
from simic.hosts.stacked.evaluation import EvaluationSet
from simic.hosts.stacked.masked_evaluation import evaluate, measurement_width
from simic.hosts.stacked.masked_pass import Cast, options_of
from simic.hosts.stacked.masked_training import Ground, probe_seeds, record_width, train_epoch
from simic.hosts.stacked.trunk import Trunk, move_constants

__all__ = ["MaskedHosts"]


class MaskedHosts(StackedHosts):
    """See ``HostBatch``; of the blueprints only those ``offered`` can take part."""

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
        sites, layers = self.anatomy.sites, len(self.anatomy.kinds)
        options = options_of(blueprints, offered, sites, device)
        self._sizes = np.full((len(sites), len(blueprints)), -1, dtype=np.int64)
        for slot, row in enumerate(options):
            for option in row:
                self._sizes[slot, option.number] = len(option.parameters)
        self._ground = Ground(
            self.trunk,
            options,
            self.weights,
            self.momentum,
            self.seeds,
            Cast.empty(len(hosts), len(sites), device),
            _moved_training(self.cohort.training, device),
            torch.zeros(STEPS, len(hosts) * BATCH, dtype=torch.int64, device=device),
            torch.zeros(len(hosts), len(sites), dtype=torch.int64, device=device),
        )
        widths = (record_width(layers, len(sites)), measurement_width(layers, len(sites)), len(sites))
        self._record, self._measured, self._probed = (
            torch.zeros(len(hosts), width, dtype=torch.float64, device=device) for width in widths
        )
        self._shown_epoch = -1
        validation = _moved_set(self.cohort.validation, device)
        changing = [self.weights.flat, self.momentum.flat, *self.seeds]
        self._train = Replayed(partial(train_epoch, self._ground, self._record), device, changing)
        self._probe = Replayed(partial(probe_seeds, self._ground, self._probed), device)
        self._validate = Replayed(
            partial(evaluate, self._ground, validation, self._measured, leave_one_out=True), device
        )
        self._validation = validation

    def probe(self, roles: Roles, epoch: int) -> NDArray[np.float64]:
        """See ``HostBatch``."""
        self._prepare(roles, epoch)
        self._probe()
        return _read(self._probed)

    def train(self, roles: Roles, epoch: int) -> TrainingRecord:
        """See ``HostBatch``."""
        self._prepare(roles, epoch)
        self._train()
        layers, slots = len(self.anatomy.kinds), len(self.anatomy.sites)
        once, layer, seed, health = np.split(_read(self._record), np.cumsum([2, layers, slots]), axis=1)
        return TrainingRecord(once[:, 0], once[:, 1], layer, seed, health)

    def evaluate(self, part: Part, roles: Roles, *, leave_one_out: bool = True) -> Measurement:
        """See ``HostBatch``; what is asked once per episode is not worth a recording."""
        self._ground.cast.set(roles, self._sizes)
        if part is Part.VALIDATION and leave_one_out:
            self._validate()
        else:
            data = (
                self._validation
                if part is Part.VALIDATION
                else _moved_set(self.cohort.evaluation_set(part), self._device)
            )
            evaluate(self._ground, data, self._measured, leave_one_out=leave_one_out)
        layers, slots = len(self.anatomy.kinds), len(self.anatomy.sites)
        once, spread, without, error, risk = np.split(
            _read(self._measured), np.cumsum([3, layers, slots, slots]), axis=1
        )
        return Measurement(once[:, 0], once[:, 1], without, error, spread, risk, once[:, 2])

    def _prepare(self, roles: Roles, epoch: int) -> None:
        """Fill the memory that an epoch reads."""
        self._ground.cast.set(roles, self._sizes)
        if epoch == self._shown_epoch:
            return
        self._ground.order.copy_(self.cohort.order(epoch))
        for slot, mine in enumerate(self._ground.streams.unbind(dim=1)):
            words = counter_rng.streams(self.keys, Purpose.DROPOUT, epoch, slot)
            mine.copy_(torch.from_numpy(words.view(np.int64)))
        self._shown_epoch = epoch


def _read(table: Tensor) -> NDArray[np.float64]:
    """The one reading of a call, in memory of its own."""
    values: NDArray[np.float64] = table.to("cpu", copy=True).numpy()
    return values


def _moved_training(data: TrainingSet, device: torch.device) -> TrainingSet:
    return TrainingSet(data.inputs.to(device), data.labels.to(device), _moved(data.gains, device))


def _moved_set(data: EvaluationSet, device: torch.device) -> EvaluationSet:
    return EvaluationSet(data.inputs.to(device), data.labels.to(device), _moved(data.gains, device), data.valid)


def _moved(gains: Sequence[Tensor | None], device: torch.device) -> tuple[Tensor | None, ...]:
    return tuple(None if gain is None else gain.to(device) for gain in gains)
