"""Metrics of an update that no loss needs: divergences by head, entropies, and what a batch consists of.

All of them are detached and stay on the device; the learner reads them with all others at once. M steps, A heads.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from simic.contracts.actions import HEADS, Op
from simic.contracts.batches import OP_INDEX
from simic.controllers import heads
from simic.numerics.importance import LOG_RATIO_LIMIT
from simic.replay.batch import SequenceBatch

__all__ = ["batch_metrics", "behaviour_divergence", "by_head", "divergence_by_head", "entropy_by_head", "ratio_shares"]


def by_head(prefix: str, values: Tensor) -> dict[str, Tensor]:
    """Return values [A] under the names ``<prefix>_<head>``."""
    return {f"{prefix}_{head.value}": value for head, value in zip(HEADS, values.detach(), strict=True)}


def entropy_by_head(entropies: Tensor, actions: Tensor) -> dict[str, Tensor]:
    """Return the entropy of each head, from entropies [M, A], over the steps whose operation uses the head."""
    return by_head("entropy", heads.head_mean(entropies, heads.relevant_heads(actions)))


def divergence_by_head(prefix: str, divergences: Tensor) -> dict[str, Tensor]:
    """Return ``<prefix>``, the joint KL per step, and its parts ``<prefix>_<head>``, from divergences [M, A].

    Heads are independent given the operation and the slot, so the joint KL is the sum over heads (the chain rule of
    relative entropy, Cover and Thomas 2006, theorem 2.5.3). A head counts 0 at a step whose operation does not use it,
    and each part is a mean over all M steps, so the parts sum to the joint KL and a head that never mattered adds 0.
    """
    return {prefix: divergences.detach().sum(1).mean(), **by_head(prefix, divergences.mean(0))}


def behaviour_divergence(log_prob_heads: Tensor, batch: SequenceBatch) -> dict[str, Tensor]:
    """Return ``behaviour_kl`` and its parts by head: KL(behaviour || policy), from log-probabilities [M, A].

    The logged actions are samples of the behaviour. So each head's divergence is estimated by the mean of
    ``r - 1 - log r`` with r = policy / behaviour, which is never negative and has the KL as its expectation (Schulman
    2020, "Approximating KL Divergence", estimator k3). Log-ratios are clamped as everywhere.
    """
    log_ratios = (log_prob_heads.detach() - batch.log_prob_heads).clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)
    return divergence_by_head("behaviour_kl", log_ratios.exp() - 1.0 - log_ratios)


def ratio_shares(log_ratios: Tensor, bounds: Mapping[str, float]) -> dict[str, Tensor]:
    """Return, as ``<name>_share``, the share of steps whose ratio pi/mu exceeds each bound.

    ``log_ratios`` [M] are log pi/mu.
    """
    ratios = log_ratios.detach().clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT).exp()
    return {f"{name}_share": (ratios > bound).to(ratios.dtype).mean() for name, bound in bounds.items()}


@torch.no_grad()
def batch_metrics(batch: SequenceBatch) -> dict[str, Tensor]:
    """Return the number of steps, the share of forced actions and the policy lag of a batch.

    An action is forced where waiting is the only legal operation. ``policy_lag`` is absent if no sequence of the batch
    comes from a policy with a version.
    """
    legal = batch.masks.op
    is_forced = legal[:, OP_INDEX[Op.WAIT]] & (legal.sum(1) == 1)
    metrics = {
        "step_count": batch.valid.sum().to(batch.rewards.dtype),
        "forced_share": is_forced.to(batch.rewards.dtype).mean(),
    }
    if batch.policy_lag is not None:
        metrics["policy_lag"] = batch.rewards.new_full((), batch.policy_lag)
    return metrics
