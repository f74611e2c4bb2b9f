"""Losses of the training phases, and their metrics.

Shapes: T time, B sequences, M valid steps, A heads. Rewards and values are points; a loss is a mean over valid steps,
that of the policy a sum of heads scaled to equal noise. Losses keep their graph; everything in ``metrics`` is detached.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from simic.contracts.settings.training import TrainConfig
from simic.controllers import heads
from simic.controllers.network import PolicyNetwork
from simic.learning.commit_rates import commit_metrics
from simic.learning.diagnostics import batch_metrics, behaviour_divergence, by_head, entropy_by_head, ratio_shares
from simic.numerics.gae import Gae, gae
from simic.numerics.importance import LOG_RATIO_LIMIT
from simic.numerics.vtrace import VTrace, vtrace
from simic.replay.batch import SequenceBatch

__all__ = [
    "Loss",
    "VTraceLossConfig",
    "advantage_metrics",
    "behaviour_advantages",
    "cloning_loss",
    "explained_variance",
    "huber",
    "off_policyness",
    "value_fit_loss",
    "vtrace_loss",
]


RATIO_BOUNDS = ("rho_bar", "c_bar", "pg_rho_bar")
"""Settings of V-trace that bound importance ratios."""


class Loss(NamedTuple):
    """A scalar loss with gradient, and detached metrics."""

    total: Tensor
    """[]"""
    metrics: dict[str, Tensor]
    """[] each."""
    errors: Tensor | None = None
    """[T, B]: distances of the values from their targets in points, without gradient; None if there are none."""


class VTraceLossConfig(NamedTuple):
    """Bounds and weights of the V-trace loss, all fixed during a training run."""

    rho_bar: float
    c_bar: float
    pg_rho_bar: float
    lambda_: float
    entropy_bonus: float
    cloning_weight: float
    exploration: float
    advantage_scale: float
    """Standard deviation in points of the log's returns around the values at the start of V-trace."""

    @staticmethod
    def of(config: TrainConfig, advantage_scale: float) -> VTraceLossConfig:
        """Return the settings of a run configuration."""
        return VTraceLossConfig(
            rho_bar=config.rho_bar,
            c_bar=config.c_bar,
            pg_rho_bar=config.pg_rho_bar,
            lambda_=config.lambda_,
            entropy_bonus=config.entropy_bonus,
            cloning_weight=config.cloning_weight,
            exploration=config.network.exploration,
            advantage_scale=advantage_scale,
        )


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
    fixed = batch.log_prob_behaviour
    result = _correct(batch, fixed, own, following)
    loss = huber(own, result.vs, batch, network.value_scale)
    explained = explained_variance(batch.valid_only(own.detach()), batch.valid_only(result.vs))
    metrics = {"value_fit_loss": loss.detach(), "value_fit_explained_variance": explained, **batch_metrics(batch)}
    return Loss(loss, metrics)


def vtrace_loss(network: PolicyNetwork, batch: SequenceBatch, targets: VTraceLossConfig) -> Loss:
    """Return the V-trace actor-critic loss (Espeholt et al. 2018, section 4.2) with cloning (Rolnick et al. 2019).

    Policy: ``-adv log pi`` with the advantage in units of ``advantage_scale``, its heads scaled to equal noise.
    Value: Huber distance to ``vs`` in units of the network's fixed value scale. Entropy and cloning (``-log pi`` of the
    behaviour's own action, whose mean is KL(behaviour || policy) up to a constant) are summed over heads, each head
    averaged over the steps at which it was relevant: a blueprint, chosen once per episode, weighs as much as the
    operation of every step, and an irrelevant head weighs nothing.
    """
    output, values = network.act_and_value(batch.steps, batch.with_finals)
    distribution = batch.distribution(output, targets.exploration)
    log_prob, relevant = distribution.log_prob(batch.actions), heads.relevant_heads(batch.actions)
    entropies = heads.head_mean(batch.weighted(distribution.entropy(batch.actions)), relevant)
    own, following = batch.successors(values)
    joint = batch.to_time_major(log_prob.joint)
    log_ratios = joint - batch.log_prob_behaviour
    bounds = {name: getattr(targets, name) for name in (*RATIO_BOUNDS, "lambda_")}
    result = _correct(batch, joint, own, following, **bounds)
    advantages = (result.pg_advantages / targets.advantage_scale)[batch.time, batch.sequence]
    parts = {
        "policy_loss": -heads.equal_noise_sum(batch.weighted(advantages.unsqueeze(1) * log_prob.heads), relevant),
        "value_loss": huber(own, result.vs, batch, network.value_scale),
        "entropy": entropies.sum(),
        "cloning_loss": -heads.head_mean(batch.weighted(log_prob.heads), relevant).sum(),
    }
    total = (
        parts["policy_loss"]
        + parts["value_loss"]
        - targets.entropy_bonus * parts["entropy"]
        + targets.cloning_weight * parts["cloning_loss"]
    )
    metrics = {
        **parts,
        **by_head("entropy", entropies),
        "explained_variance": explained_variance(batch.valid_only(own.detach()), batch.valid_only(result.vs)),
        **off_policyness(batch.valid_only(log_ratios)),
        **ratio_shares(batch.valid_only(log_ratios), {name: bounds[name] for name in RATIO_BOUNDS}),
        **behaviour_divergence(log_prob.heads, batch),
        **batch_metrics(batch),
        **advantage_metrics(batch.valid_only(result.pg_advantages)),
        **commit_metrics(output, batch),
    }
    return Loss(total, {name: value.detach() for name, value in metrics.items()}, result.vs - own.detach())


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


def explained_variance(values: Tensor, targets: Tensor) -> Tensor:
    """Return ``1 - var(target - value) / var(target)`` of values [M]; 0 if the targets do not vary."""
    spread = targets.var(correction=0)
    return torch.where(spread > 0, 1.0 - (targets - values).var(correction=0) / spread.clamp(min=1e-12), 0.0)


def _correct(batch: SequenceBatch, joint: Tensor, own: Tensor, following: Tensor, **bounds: float) -> VTrace:
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


def huber(values: Tensor, targets: Tensor, batch: SequenceBatch, scale: Tensor) -> Tensor:
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
