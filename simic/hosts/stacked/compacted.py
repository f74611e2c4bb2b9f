"""Stacked hosts in compacted form, for CPUs: what takes part is packed once per epoch, nothing else is computed."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from simic.hosts.protocols import Measurement, Part, Roles, TrainingRecord
from simic.hosts.stacked.base import StackedHosts
from simic.hosts.stacked.evaluation import evaluate
from simic.hosts.stacked.growth import Growth, gather, scatter
from simic.hosts.stacked.training import EpochBatches, probe_seeds, train_epoch

__all__ = ["CompactedHosts"]


class CompactedHosts(StackedHosts):
    """See ``HostBatch``."""

    _prepared: tuple[int, EpochBatches] | None = None
    """Batches of an epoch that was probed; training wants them next."""

    def probe(self, roles: Roles, epoch: int) -> NDArray[np.float64]:
        """See ``HostBatch``."""
        growth, batches = self._gather(roles), self.cohort.batches(epoch)
        self._prepared = epoch, batches
        noisy = batches._replace(noise=self.cohort.noise(growth, epoch))
        return probe_seeds(self.trunk, self.weights, growth, noisy)

    def train(self, roles: Roles, epoch: int) -> TrainingRecord:
        """See ``HostBatch``."""
        growth = self._gather(roles)
        prepared, self._prepared = self._prepared, None
        batches = prepared[1] if prepared is not None and prepared[0] == epoch else self.cohort.batches(epoch)
        batches = batches._replace(noise=self.cohort.noise(growth, epoch))
        record = train_epoch(self.trunk, self.weights, self.momentum, growth, batches)
        scatter(growth, self.seeds)
        return record

    def _gather(self, roles: Roles) -> Growth:
        return gather(self.seeds, roles, self.blueprints, self.anatomy.sites, in_training=True)

    def evaluate(self, part: Part, roles: Roles, *, leave_one_out: bool = True) -> Measurement:
        """See ``HostBatch``."""
        growth = gather(
            self.seeds, roles, self.blueprints, self.anatomy.sites, in_training=False, leave_one_out=leave_one_out
        )
        return evaluate(self.trunk, self.weights, growth, self.cohort.evaluation_set(part))
