"""``ppo``: cloning, value regression, then proximal policy optimisation (Schulman et al. 2017).

The ratio is that of the policy to a *reference*, the weights at the start of ``train.ppo_epochs`` passes; its
log-probabilities, values and advantages are computed over whole sequences, never read from the log. So the first ratio
is 1 whoever made the log, unless adapters leave out inputs (``train.lora.dropout``). What the behaviour did differently
from the reference is a weight ``min(rho_bar, reference / behaviour)`` on the advantage, without gradient (the decoupled
objective of Hilton et al. 2022, "Batch size-invariance for policy optimization", section 3). On-policy the weight is 1.

From another policy's log this improves on the behaviour within a trust region: advantages are those of the behaviour,
and hold only near it. Cloning puts the first reference there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from simic.contracts.settings.training import TrainConfig
from simic.controllers import heads
from simic.controllers.network import PolicyNetwork
from simic.learning.counted_passes import CountedPasses
from simic.learning.diagnostics import divergence_by_head, ratio_shares
from simic.learning.losses import ForwardPass, Loss, behaviour_advantages
from simic.learning.objective import LearningTask
from simic.numerics.gae import Gae
from simic.numerics.importance import LOG_RATIO_LIMIT
from simic.numerics.ppo import clipped_surrogate
from simic.replay.batch import SequenceBatch

__all__ = ["NAME", "SUMMARY", "PpoObjective", "begin", "ppo_loss"]

NAME = "ppo"
SUMMARY = "cloning, value regression, then PPO with generalised advantages"


class PpoObjective(CountedPasses):
    """PPO over the planned passes; new episodes of a round come from its own policy, so policies are not averaged."""

    averages_rounds = False
    phase = NAME

    def __init__(self, task: LearningTask) -> None:
        super().__init__(task)
        self._reference, self._is_near = task.learner.network, True

    def begins(self, number: int, last: Sequence[Mapping[str, float]]) -> bool:  # noqa: ARG002 - the interface
        """Take a new reference every ``train.ppo_epochs`` passes; return whether the policy is near its reference."""
        if number % self.task.config.ppo_epochs == 0:
            learner = self.task.learner
            self._reference, self._is_near = learner.history.frozen("reference", learner.network), True
        return self._is_near

    def goes_on(self, metrics: Mapping[str, float]) -> bool:
        """Return whether the KL from the reference is at most ``train.ppo_max_kl``."""
        self._is_near = metrics["kl"] <= self.task.config.ppo_max_kl
        return self._is_near

    def loss(self, batch: SequenceBatch, advantage_scale: float) -> Loss:
        """Return the PPO loss of a batch."""
        return ppo_loss(self.task.learner.network, self._reference, batch, self.config, advantage_scale)


class _Reference(NamedTuple):
    """What the reference says of a batch, without gradients."""

    forward: ForwardPass
    estimate: Gae
    """Advantages and returns in points, not weighted."""
    advantages: Tensor
    """[T, B]: weighted by ``min(rho_bar, reference / behaviour)``."""


def ppo_loss(
    network: PolicyNetwork,
    reference: PolicyNetwork,
    batch: SequenceBatch,
    config: TrainConfig,
    advantage_scale: float,
) -> Loss:
    """Return the clipped surrogate per head, the value's distance to the lambda-returns, entropy and cloning.

    Heads of the surrogate are scaled to equal noise; an irrelevant head changes no part. ``kl`` is the sum over heads
    of KL(reference || policy), given the logged operation and slot, averaged over steps.
    """
    fixed = _reference_of(reference, batch, config)
    forward = ForwardPass.of(network, batch, config.network.exploration)
    surrogate = clipped_surrogate(
        forward.log_prob.heads - fixed.forward.log_prob.heads,
        (fixed.advantages / advantage_scale)[batch.time, batch.sequence],
        forward.relevant,
        clip=config.ppo_clip,
        dual_clip=config.ppo_dual_clip,
    )
    with torch.no_grad():
        divergence = fixed.forward.distribution.kl(forward.distribution, batch.actions)
    return forward.loss(
        -heads.equal_noise_sum(batch.weighted(surrogate.objective), forward.relevant),
        fixed.advantages,
        fixed.estimate.returns,
        entropy_bonus=config.entropy_bonus,
        cloning_weight=config.cloning_weight,
        metrics={
            **divergence_by_head("kl", divergence),
            "clip_share": surrogate.is_clipped.sum() / forward.relevant.sum(),
            **ratio_shares(batch.valid_only(fixed.forward.log_ratios), {"rho_bar": config.rho_bar}),
        },
    )


@torch.no_grad()
def _reference_of(reference: PolicyNetwork, batch: SequenceBatch, config: TrainConfig) -> _Reference:
    forward = ForwardPass.of(reference, batch, config.network.exploration)
    estimate = behaviour_advantages(batch, forward.own, forward.following, config.lambda_)
    weights = forward.log_ratios.clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT).exp().clamp(max=config.rho_bar)
    return _Reference(forward, estimate, weights * estimate.advantages)


def begin(task: LearningTask) -> PpoObjective:
    """Return the objective for a log."""
    return PpoObjective(task)
