"""``vtrace``: cloning, value regression, then V-trace (Espeholt et al. 2018, section 4.1)."""

from __future__ import annotations

from simic.learning.counted_passes import CountedPasses
from simic.learning.losses import Loss, VTraceLossConfig, vtrace_loss
from simic.learning.objective import Log
from simic.replay.batch import SequenceBatch

__all__ = ["NAME", "SUMMARY", "VTraceObjective", "begin"]

NAME = "vtrace"
SUMMARY = "cloning, value regression, then V-trace"


class VTraceObjective(CountedPasses):
    """V-trace over the planned passes."""

    phase = NAME

    def loss(self, batch: SequenceBatch, advantage_scale: float) -> Loss:
        """Return the V-trace loss of a batch."""
        return vtrace_loss(self.log.learner.network, batch, VTraceLossConfig.of(self.log.config, advantage_scale))


def begin(log: Log) -> VTraceObjective:
    """Return the objective for a log."""
    return VTraceObjective(log)
