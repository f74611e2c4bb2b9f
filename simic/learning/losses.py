"""What is minimised, and what is worth knowing about it.

Shapes: T time, B sequences, M valid steps, A heads. Rewards and values are points; a loss is a mean over valid steps,
the policy's a sum of heads brought to equal noise. Losses keep their graph; everything in ``metrics`` is detached.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from simic.contracts.actions import HEADS
from simic.contracts.config import TrainConfig
from simic.controllers import heads
from simic.controllers.network import PolicyNetwork
from simic.learning.commitment import commitment
from simic.numerics.vtrace import VTrace, vtrace
from simic.replay.batch import SequenceBatch

__all__ = ["Loss", "Targets", "cloning_loss", "value_fit_loss", "vtrace_loss"]


class Loss(NamedTuple):
    """One scalar with gradient, and scalars without."""

    total: Tensor
    """[]"""
    metrics: dict[str, Tensor]
    """[] each."""


class Targets(NamedTuple):
    """Bounds and weights of the V-trace loss, all fixed during a training."""

    rho_bar: float
    c_bar: float
    lambda_: float
    entropy_bonus: float
    cloning_weight: float
    exploration: float
    advantage_scale: float
    """Points: deviation of the log's returns around the value with which V-trace began."""

    @staticmethod
    def of(config: TrainConfig, advantage_scale: float) -> Targets:
        """From the run's configuration."""
        return Targets(
            rho_bar=config.rho_bar,
            c_bar=config.c_bar,
            lambda_=config.lambda_,
            entropy_bonus=config.entropy_bonus,
            cloning_weight=config.cloning_weight,
            exploration=config.network.exploration,
            advantage_scale=advantage_scale,
        )


def cloning_loss(network: PolicyNetwork, batch: SequenceBatch, exploration: float) -> Loss:
    """Mean negative log-likelihood of the log's actions; its least value is the behaviour's own entropy."""
    output = network.act(batch.steps)
    log_prob = heads.log_prob(output, batch.steps.slot_ptr, batch.masks, batch.actions, exploration)
    loss = -log_prob.joint.mean()
    behaviour = batch.log_prob_heads.sum(1).mean()
    return Loss(loss, {"cloning_loss": loss.detach(), "cloning_gap": (loss + behaviour).detach()})


def value_fit_loss(network: PolicyNetwork, batch: SequenceBatch) -> Loss:
    """Huber distance to the behaviour's own return to go, bootstrapped where an episode was truncated."""
    own, following = batch.successors(network.value(batch.with_finals))
    fixed = batch.log_prob_behaviour
    result = _correct(batch, fixed, own, following, rho_bar=1.0, c_bar=1.0, lambda_=1.0)
    loss = _huber(own, result.vs, batch.valid, network.value_scale)
    explained = explained_variance(own.detach(), result.vs, batch.valid)
    return Loss(loss, {"value_fit_loss": loss.detach(), "value_fit_explained_variance": explained})


def vtrace_loss(network: PolicyNetwork, batch: SequenceBatch, targets: Targets) -> Loss:
    """Actor-critic on V-trace (Espeholt et al. 2018, section 4.2) that stays near the behaviour (Rolnick et al. 2019).

    Policy: ``-adv log pi`` with the advantage in units of ``advantage_scale``, its heads brought to equal noise.
    Value: Huber distance to ``vs`` in units of the network's fixed value scale. Entropy and cloning (``-log pi`` of the
    behaviour's own action, whose mean is KL(behaviour || policy) up to a constant) are summed over heads, each head
    averaged over the steps at which it mattered: choosing a blueprint, once an episode, weighs as much as choosing an
    operation at every step, and a head that did not matter weighs nothing.
    """
    output, ptr = network.act(batch.steps), batch.steps.slot_ptr
    log_prob = heads.log_prob(output, ptr, batch.masks, batch.actions, targets.exploration)
    relevant = heads.relevant_heads(batch.actions)
    entropies = heads.head_mean(heads.entropy(output, ptr, batch.masks, batch.actions, targets.exploration), relevant)
    own, following = batch.successors(network.value(batch.with_finals))
    joint = batch.to_time_major(log_prob.joint)
    result = _correct(
        batch, joint, own, following, rho_bar=targets.rho_bar, c_bar=targets.c_bar, lambda_=targets.lambda_
    )
    advantages = (result.pg_advantages / targets.advantage_scale)[batch.time, batch.place]
    parts = {
        "policy_loss": -heads.equal_noise_sum(advantages.unsqueeze(1) * log_prob.heads, relevant),
        "value_loss": _huber(own, result.vs, batch.valid, network.value_scale),
        "entropy": entropies.sum(),
        "cloning_loss": -heads.head_mean(log_prob.heads, relevant).sum(),
    }
    total = (
        parts["policy_loss"]
        + parts["value_loss"]
        - targets.entropy_bonus * parts["entropy"]
        + targets.cloning_weight * parts["cloning_loss"]
    )
    metrics = {
        **parts,
        **{f"entropy_{head.value}": value for head, value in zip(HEADS, entropies, strict=True)},
        "explained_variance": explained_variance(own.detach(), result.vs, batch.valid),
        **_off_policyness(result, batch),
        **_advantages(result, batch),
        **commitment(output, batch),
    }
    return Loss(total, {name: value.detach() for name, value in metrics.items()})


def explained_variance(values: Tensor, targets: Tensor, valid: Tensor) -> Tensor:
    """``1 - var(target - value) / var(target)`` over valid entries; 0 where the targets do not vary."""
    target, error = targets[valid], (targets - values)[valid]
    spread = target.var(correction=0)
    return torch.where(spread > 0, 1.0 - error.var(correction=0) / spread.clamp(min=1e-12), 0.0)


def _correct(
    batch: SequenceBatch, joint: Tensor, own: Tensor, following: Tensor, *, rho_bar: float, c_bar: float, lambda_: float
) -> VTrace:
    return vtrace(
        log_prob_target=joint.detach(),
        log_prob_behaviour=batch.log_prob_behaviour,
        rewards=batch.rewards,
        discounts=batch.discounts,
        values=own.detach(),
        next_values=following.detach(),
        is_cut=batch.is_cut,
        rho_bar=rho_bar,
        c_bar=c_bar,
        pg_rho_bar=rho_bar,
        lambda_=lambda_,
    )


def _huber(values: Tensor, targets: Tensor, valid: Tensor, scale: Tensor) -> Tensor:
    return functional.smooth_l1_loss(values[valid] / scale, targets[valid] / scale)


def _off_policyness(result: VTrace, batch: SequenceBatch) -> dict[str, Tensor]:
    """How far the policy has moved from the behaviour, over valid steps."""
    ratios = result.ratios[batch.valid]
    log_ratios = ratios.log()
    return {
        "mean_ratio": ratios.clamp(max=1.0).mean(),
        "mean_log_ratio": log_ratios.mean(),
        "behaviour_kl": (ratios - 1.0 - log_ratios).mean(),
        "effective_sample_share": ratios.sum().square() / (ratios.square().sum() * len(ratios)),
        "clamp_count": result.clamp_count.to(ratios.dtype),
    }


def _advantages(result: VTrace, batch: SequenceBatch) -> dict[str, Tensor]:
    """Points, before scaling."""
    advantages = result.pg_advantages[batch.valid]
    return {"advantage_mean": advantages.mean(), "advantage_sd": advantages.std(correction=0)}
