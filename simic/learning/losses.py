"""What all losses share: one forward pass over a batch, the actor-critic loss of it, and the supervised losses.

Shapes: T time, B sequences, M valid steps, A heads. Rewards and values are points; a loss is a mean over valid steps.
Losses keep their graph; everything in ``metrics`` is detached.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from simic.controllers import heads
from simic.controllers.network import NetworkOutput, PolicyNetwork
from simic.learning.commit_rates import commit_metrics
from simic.learning.diagnostics import batch_metrics, behaviour_divergence, by_head, entropy_by_head
from simic.numerics.gae import Gae, gae
from simic.numerics.importance import LOG_RATIO_LIMIT
from simic.numerics.vtrace import VTrace, vtrace
from simic.replay.batch import SequenceBatch

__all__ = [
    "ForwardPass",
    "Loss",
    "advantage_metrics",
    "behaviour_advantages",
    "cloning_loss",
    "explained_variance",
    "off_policyness",
    "value_fit_loss",
    "vtrace_of",
]


class Loss(NamedTuple):
    """A scalar loss with gradient, and detached metrics."""

    total: Tensor
    """[]"""
    metrics: dict[str, Tensor]
    """[] each."""
    errors: Tensor | None = None
    """[T, B]: distances of the values from their targets in points, without gradient; None if there are none."""


class ForwardPass(NamedTuple):
    """What a network says of a batch; an objective makes the policy's loss of it, and ``loss`` adds all else."""

    batch: SequenceBatch
    network: PolicyNetwork
    output: NetworkOutput
    """Of the M steps."""
    distribution: heads.ActionDistribution
    log_prob: heads.LogProb
    """Of the logged actions."""
    joint: Tensor
    """[T, B]: their joint log-probabilities, without gradient; 0 in the padding."""
    relevant: Tensor
    """bool [M, A]: the logged operation uses the head."""
    own: Tensor
    """[T, B], points: values of the states of the steps."""
    following: Tensor
    """[T, B], points: values of their successors."""

    @staticmethod
    def of(network: PolicyNetwork, batch: SequenceBatch, exploration: float) -> ForwardPass:
        """Run a network once over the steps and final states of a batch."""
        output, values = network.act_and_value(batch.steps, batch.with_finals)
        distribution = batch.distribution(output, exploration)
        log_prob = distribution.log_prob(batch.actions)
        joint, relevant = batch.to_time_major(log_prob.joint.detach()), heads.relevant_heads(batch.actions)
        own, following = batch.successors(values)
        return ForwardPass(batch, network, output, distribution, log_prob, joint, relevant, own, following)

    @property
    def log_ratios(self) -> Tensor:
        """Return log(policy / behaviour) [T, B] of the logged actions, not clamped and without gradient."""
        return self.joint - self.batch.log_prob_behaviour

    def loss(
        self,
        policy_loss: Tensor,
        advantages: Tensor,
        targets: Tensor,
        *,
        entropy_bonus: float | None,
        cloning_weight: float | None = None,
        metrics: Mapping[str, Tensor],
    ) -> Loss:
        """Return ``policy_loss`` with the value's loss, less the entropy, and with the metrics of every objective.

        Value: Huber distance to the targets in units of the network's fixed value scale. Entropy and cloning (``-log
        pi`` of the behaviour's own action, whose mean is KL(behaviour || policy) up to a constant) are summed over
        heads, each head averaged over the steps at which it was relevant: a blueprint, chosen once per episode, weighs
        as much as the operation of every step, and an irrelevant head weighs nothing.

        Args:
            policy_loss: [].
            advantages: [T, B] in points, without gradient; they are only measured.
            targets: [T, B] in points, without gradient: what the values are to learn.
            entropy_bonus: weight of the entropy. None only measures it, and without the weights of prioritised draws,
                which are for what is learned.
            cloning_weight: weight of cloning; None leaves it out.
            metrics: those of the objective.
        """
        batch, entropy = self.batch, self.distribution.entropy(self.batch.actions)
        weighted = entropy.detach() if entropy_bonus is None else batch.weighted(entropy)
        entropies = heads.head_mean(weighted, self.relevant)
        value_loss = _huber(self.own, targets, batch, self.network.value_scale)
        parts = {"policy_loss": policy_loss, "value_loss": value_loss, "entropy": entropies.sum()}
        total = policy_loss + value_loss
        if entropy_bonus is not None:
            total = total - entropy_bonus * parts["entropy"]
        if cloning_weight is not None:
            parts["cloning_loss"] = -heads.head_mean(batch.weighted(self.log_prob.heads), self.relevant).sum()
            total = total + cloning_weight * parts["cloning_loss"]
        values = self.own.detach()
        measured = {
            **parts,
            **by_head("entropy", entropies),
            **metrics,
            "explained_variance": explained_variance(batch.valid_only(values), batch.valid_only(targets)),
            **off_policyness(batch.valid_only(self.log_ratios)),
            **behaviour_divergence(self.log_prob.heads, batch),
            **batch_metrics(batch),
            **advantage_metrics(batch.valid_only(advantages)),
            **commit_metrics(self.output, batch),
        }
        return Loss(total, {name: value.detach() for name, value in measured.items()}, targets - values)


def cloning_loss(network: PolicyNetwork, batch: SequenceBatch, exploration: float) -> Loss:
    """Return the mean negative log-likelihood of the logged actions; its minimum is the behaviour's entropy."""
    distribution = batch.distribution(network.act(batch.steps), exploration)
    log_prob = distribution.log_prob(batch.actions)
    loss = -log_prob.joint.mean()
    behaviour = batch.log_prob_heads.sum(1).mean()
    with torch.no_grad():
        entropy = distribution.entropy(batch.actions)
    metrics = {
        "cloning_loss": loss.detach(),
        "cloning_gap": (loss + behaviour).detach(),
        **entropy_by_head(entropy, batch.actions),
        **behaviour_divergence(log_prob.heads, batch),
        **batch_metrics(batch),
    }
    return Loss(loss, metrics)


def value_fit_loss(network: PolicyNetwork, batch: SequenceBatch) -> Loss:
    """Return the Huber distance to the behaviour's return to go, bootstrapped where an episode was truncated."""
    own, following = batch.successors(network.value(batch.with_finals))
    result = vtrace_of(batch, batch.log_prob_behaviour, own, following)
    loss = _huber(own, result.vs, batch, network.value_scale)
    explained = explained_variance(batch.valid_only(own.detach()), batch.valid_only(result.vs))
    metrics = {"value_fit_loss": loss.detach(), "value_fit_explained_variance": explained, **batch_metrics(batch)}
    return Loss(loss, metrics)


def behaviour_advantages(batch: SequenceBatch, own: Tensor, following: Tensor, lambda_: float) -> Gae:
    """Return advantages of the logged actions and lambda-returns [T, B], from values [T, B] of steps and successors."""
    return gae(
        rewards=batch.rewards,
        discounts=batch.discounts,
        values=own.detach(),
        next_values=following.detach(),
        is_cut=batch.is_cut,
        lambda_=lambda_,
    )


def vtrace_of(batch: SequenceBatch, joint: Tensor, own: Tensor, following: Tensor, **bounds: float) -> VTrace:
    """Return V-trace's targets and advantages [T, B] for a policy with joint log-probabilities [T, B] ``joint``."""
    return vtrace(
        log_prob_target=joint.detach(),
        log_prob_behaviour=batch.log_prob_behaviour,
        rewards=batch.rewards,
        discounts=batch.discounts,
        values=own.detach(),
        next_values=following.detach(),
        is_cut=batch.is_cut,
        **bounds,
    )


def explained_variance(values: Tensor, targets: Tensor) -> Tensor:
    """Return ``1 - var(target - value) / var(target)`` of values [M]; 0 if the targets do not vary."""
    spread = targets.var(correction=0)
    return torch.where(spread > 0, 1.0 - (targets - values).var(correction=0) / spread.clamp(min=1e-12), 0.0)


def _huber(values: Tensor, targets: Tensor, batch: SequenceBatch, scale: Tensor) -> Tensor:
    """Return the mean Huber distance [T, B] over valid entries, in units of ``scale``, with the batch's weights."""
    own, target = batch.valid_only(values) / scale, batch.valid_only(targets) / scale
    if batch.weights is None:
        return functional.smooth_l1_loss(own, target)
    weights = batch.valid_only(batch.weights.expand_as(batch.valid))
    return (weights * functional.smooth_l1_loss(own, target, reduction="none")).mean()


def off_policyness(log_ratios: Tensor) -> dict[str, Tensor]:
    """Return the distance of the policy from the behaviour over steps; ``log_ratios`` [M] are log pi/mu.

    ``mean_ratio`` is the mean of min(1, pi/mu), ``max_log_ratio`` the largest log pi/mu. With w = pi/mu,
    ``effective_sample_share`` is (sum w)^2 / (n sum w^2) (Kong 1992): 1 on-policy, 1/n if one step has all the weight;
    ``mean_weight`` and ``mean_square_weight`` are the means of w and w^2 from which it follows for several parts of a
    batch. ``clamp_count`` counts log-ratios beyond the limit.
    """
    own = log_ratios.detach()
    clamped = own.clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)
    ratios = clamped.exp()
    return {
        "mean_ratio": ratios.clamp(max=1.0).mean(),
        "mean_log_ratio": clamped.mean(),
        "max_log_ratio": clamped.max(),
        "effective_sample_share": ratios.sum().square() / (ratios.square().sum() * len(ratios)),
        "mean_weight": ratios.mean(),
        "mean_square_weight": ratios.square().mean(),
        "clamp_count": (own.abs() > LOG_RATIO_LIMIT).sum().to(ratios.dtype),
    }


def advantage_metrics(advantages: Tensor) -> dict[str, Tensor]:
    """Return mean, deviation, skew and excess kurtosis of the advantages [M] before scaling.

    Mean and deviation are in points. Skew and kurtosis, the third and fourth standardised moments, have no unit; a
    normal distribution has 0 of both, and so have advantages that do not vary.
    """
    mean, deviation = advantages.mean(), advantages.std(correction=0)
    varies = deviation > 0
    standard = (advantages - mean) / torch.where(varies, deviation, 1.0)
    return {
        "advantage_mean": mean,
        "advantage_sd": deviation,
        "advantage_skew": standard.pow(3).mean(),
        "advantage_kurtosis": torch.where(varies, standard.pow(4).mean() - 3.0, 0.0),
    }
