"""``vtrace``: cloning, value regression, then V-trace (Espeholt et al. 2018, section 4.1)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from simic.learning.counted_passes import CountedPasses
from simic.learning.losses import Loss, VTraceLossConfig, vtrace_loss
from simic.learning.objective import LearningTask
from simic.replay.batch import SequenceBatch

__all__ = ["NAME", "SUMMARY", "VTraceObjective", "begin"]

NAME = "vtrace"
SUMMARY = "cloning, value regression, then V-trace"


class VTraceObjective(CountedPasses):
    """V-trace over the planned passes."""

    phase = NAME

    def begins(self, number: int, last: Sequence[Mapping[str, float]]) -> bool:  # noqa: ARG002 - the interface
        """Return whether the last pass had the effective sample size of ``train.min_effective_share``."""
        shares = [metrics["effective_sample_share"] for metrics in last]
        return not shares or sum(shares) / len(shares) >= self.task.config.min_effective_share

    def loss(self, batch: SequenceBatch, advantage_scale: float) -> Loss:
        """Return the V-trace loss of a batch."""
        return vtrace_loss(self.task.learner.network, batch, VTraceLossConfig.of(self.config, advantage_scale))


def begin(task: LearningTask) -> VTraceObjective:
    """Return the objective for a log."""
    return VTraceObjective(task)
