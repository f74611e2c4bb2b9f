"""``awr``: cloning, value regression, then advantage-weighted regression (Peng et al. 2019, section 3).

The policy is regressed on the logged actions with weights ``exp(advantage / temperature)``. This is cloning of a better
policy than the behaviour: no importance ratio enters, and an action that the log does not have gets no weight.
"""

from __future__ import annotations

import math

from simic.contracts.settings.training import TrainConfig
from simic.controllers import heads
from simic.controllers.network import PolicyNetwork
from simic.learning.counted_passes import CountedPasses
from simic.learning.losses import ForwardPass, Loss, behaviour_advantages
from simic.learning.objective import LearningTask
from simic.replay.batch import SequenceBatch

__all__ = ["NAME", "SUMMARY", "AwrObjective", "awr_loss", "begin"]

NAME = "awr"
SUMMARY = "cloning, value regression, then cloning weighted by advantages"


class AwrObjective(CountedPasses):
    """Advantage-weighted regression over the planned passes."""

    phase = NAME

    def loss(self, batch: SequenceBatch, advantage_scale: float) -> Loss:
        """Return the loss of a batch."""
        return awr_loss(self.task.learner.network, batch, self.config, advantage_scale)


def awr_loss(network: PolicyNetwork, batch: SequenceBatch, config: TrainConfig, advantage_scale: float) -> Loss:
    """Return the weighted negative log-likelihood of the logged actions, with value loss and entropy.

    The weight of a step is ``exp(advantage / (awr_temperature advantage_scale))``, at most ``awr_max_weight``, without
    gradient. Each head is averaged over the steps that use it, so a blueprint, chosen once per episode, weighs as much
    as the operation of every step. The value learns the lambda-returns of the log.
    """
    forward = ForwardPass.of(network, batch, config.network.exploration)
    estimate = behaviour_advantages(batch, forward.own, forward.following, config.lambda_)
    exponents = (estimate.advantages / (config.awr_temperature * advantage_scale))[batch.time, batch.sequence]
    largest = math.log(config.awr_max_weight)
    # Bounded before exp, so that no exponent overflows.
    weights = exponents.clamp(max=largest).exp()
    return forward.loss(
        -heads.head_mean(batch.weighted(weights.unsqueeze(1) * forward.log_prob.heads), forward.relevant).sum(),
        estimate.advantages,
        estimate.returns,
        entropy_bonus=config.entropy_bonus,
        metrics={"weight_mean": weights.mean(), "weight_capped_share": (exponents >= largest).float().mean()},
    )


def begin(task: LearningTask) -> AwrObjective:
    """Return the objective for a log."""
    return AwrObjective(task)
