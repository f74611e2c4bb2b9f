"""The clipped surrogate of proximal policy optimisation, for actions of several heads.

Schulman et al. 2017, "Proximal Policy Optimization Algorithms", equation 7; the second bound for negative advantages is
that of Ye et al. 2020, "Mastering Complex Control in MOBA Games with Deep Reinforcement Learning", equation 5.
Shape legend: N steps, A heads.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from simic.numerics.importance import LOG_RATIO_LIMIT

__all__ = ["Surrogate", "clipped_surrogate"]


class Surrogate(NamedTuple):
    """The objective of every head, to be maximised."""

    objective: Tensor
    """[N, A], with gradient to the log-ratios; 0 where irrelevant."""
    is_clipped: Tensor
    """bool [N, A]: a bound holds, so that the entry has no gradient; false where irrelevant."""


def clipped_surrogate(
    log_ratios: Tensor, advantages: Tensor, relevant: Tensor, *, clip: float, dual_clip: float
) -> Surrogate:
    """Return ``min(q a, clamp(q, 1 - clip, 1 + clip) a)`` per head, at least ``dual_clip a`` where a < 0.

    Each head has its own ratio q: a blueprint that moved far does not hold back the operation of the same step.

    Args:
        log_ratios: float [N, A], log pi / pi_old of each head; clamped to +-``LOG_RATIO_LIMIT`` before ``exp``.
        advantages: float [N], a; without gradient.
        relevant: bool [N, A]: the heads that the action uses.
        clip: in (0, 1).
        dual_clip: at least 1 + ``clip``.

    Raises:
        ValueError: for shapes or bounds that do not fit.
    """
    if log_ratios.dim() != 2 or relevant.shape != log_ratios.shape or advantages.shape != log_ratios.shape[:1]:
        raise ValueError(
            f"expected log_ratios [N, A], advantages [N] and relevant [N, A], found {tuple(log_ratios.shape)}, "
            f"{tuple(advantages.shape)} and {tuple(relevant.shape)}"
        )
    if not (0.0 < clip < 1.0 and dual_clip >= 1.0 + clip):
        raise ValueError(f"expected clip in (0, 1) and dual_clip >= 1 + clip, found {clip} and {dual_clip}")
    gain = advantages.unsqueeze(1)
    ratios = torch.where(relevant, log_ratios, 0.0).clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT).exp()
    bounded = torch.minimum(ratios * gain, ratios.clamp(1.0 - clip, 1.0 + clip) * gain)
    objective = torch.where(gain < 0, torch.maximum(bounded, dual_clip * gain), bounded)
    rises, falls = (gain > 0) & (ratios > 1.0 + clip), (gain < 0) & ((ratios < 1.0 - clip) | (ratios > dual_clip))
    return Surrogate(torch.where(relevant, objective, 0.0), (rises | falls) & relevant)
