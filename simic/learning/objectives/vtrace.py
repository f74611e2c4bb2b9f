"""``vtrace``: cloning, value regression, then V-trace (Espeholt et al. 2018, section 4.1)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from simic.contracts.settings.training import TrainConfig
from simic.controllers import heads
from simic.controllers.network import PolicyNetwork
from simic.learning.counted_passes import CountedPasses
from simic.learning.diagnostics import ratio_shares
from simic.learning.losses import ForwardPass, Loss, vtrace_of
from simic.learning.objective import LearningTask
from simic.replay.batch import SequenceBatch

__all__ = ["NAME", "SUMMARY", "VTraceObjective", "begin", "vtrace_loss"]

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
        return vtrace_loss(self.task.learner.network, batch, self.config, advantage_scale)


def vtrace_loss(network: PolicyNetwork, batch: SequenceBatch, config: TrainConfig, advantage_scale: float) -> Loss:
    """Return the V-trace actor-critic loss (Espeholt et al. 2018, section 4.2) with cloning (Rolnick et al. 2019).

    Policy: ``-adv log pi`` with the advantage in units of ``advantage_scale``, its heads scaled to equal noise. The
    value learns ``vs``.
    """
    forward = ForwardPass.of(network, batch, config.network.exploration)
    ratio_bounds = {"rho_bar": config.rho_bar, "c_bar": config.c_bar, "pg_rho_bar": config.pg_rho_bar}
    result = vtrace_of(batch, forward.joint, forward.own, forward.following, lambda_=config.lambda_, **ratio_bounds)
    advantages = (result.pg_advantages / advantage_scale)[batch.time, batch.sequence].unsqueeze(1)
    return forward.loss(
        -heads.equal_noise_sum(batch.weighted(advantages * forward.log_prob.heads), forward.relevant),
        result.pg_advantages,
        result.vs,
        entropy_bonus=config.entropy_bonus,
        cloning_weight=config.cloning_weight,
        metrics=ratio_shares(batch.valid_only(forward.log_ratios), ratio_bounds),
    )


def begin(task: LearningTask) -> VTraceObjective:
    """Return the objective for a log."""
    return VTraceObjective(task)
