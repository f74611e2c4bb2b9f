"""``awr``: cloning, value regression, then advantage-weighted regression (Peng et al. 2019, section 3).

The policy is regressed on the logged actions with weights ``exp(advantage / temperature)``. This is cloning of a better
policy than the behaviour: no importance ratio enters, and an action that the log does not have gets no weight.
"""

from __future__ import annotations

import math

from simic.contracts.settings.training import TrainConfig
from simic.controllers import heads
from simic.controllers.network import PolicyNetwork
from simic.learning.commit_rates import commit_metrics
from simic.learning.counted_passes import CountedPasses
from simic.learning.diagnostics import batch_metrics, behaviour_divergence, by_head
from simic.learning.losses import (
    Loss,
    advantage_metrics,
    behaviour_advantages,
    explained_variance,
    huber,
    off_policyness,
)
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
    output, values = network.act_and_value(batch.steps, batch.with_finals)
    distribution = batch.distribution(output, config.network.exploration)
    log_prob, relevant = distribution.log_prob(batch.actions), heads.relevant_heads(batch.actions)
    entropies = heads.head_mean(batch.weighted(distribution.entropy(batch.actions)), relevant)
    own, following = batch.successors(values)
    estimate = behaviour_advantages(batch, own, following, config.lambda_)
    exponents = (estimate.advantages / (config.awr_temperature * advantage_scale))[batch.time, batch.sequence]
    largest = math.log(config.awr_max_weight)
    # Bounded before exp, so that no exponent overflows.
    weights = exponents.clamp(max=largest).exp()
    parts = {
        "policy_loss": -heads.head_mean(batch.weighted(weights.unsqueeze(1) * log_prob.heads), relevant).sum(),
        "value_loss": huber(own, estimate.returns, batch, network.value_scale),
        "entropy": entropies.sum(),
    }
    total = parts["policy_loss"] + parts["value_loss"] - config.entropy_bonus * parts["entropy"]
    metrics = {
        **parts,
        **by_head("entropy", entropies),
        "weight_mean": weights.mean(),
        "weight_capped_share": (exponents >= largest).float().mean(),
        "explained_variance": explained_variance(batch.valid_only(own.detach()), batch.valid_only(estimate.returns)),
        **off_policyness(batch.valid_only(batch.to_time_major(log_prob.joint) - batch.log_prob_behaviour)),
        **behaviour_divergence(log_prob.heads, batch),
        **advantage_metrics(batch.valid_only(estimate.advantages)),
        **batch_metrics(batch),
        **commit_metrics(output, batch),
    }
    errors = estimate.returns - own.detach()
    return Loss(total, {name: value.detach() for name, value in metrics.items()}, errors)


def begin(task: LearningTask) -> AwrObjective:
    """Return the objective for a log."""
    return AwrObjective(task)
