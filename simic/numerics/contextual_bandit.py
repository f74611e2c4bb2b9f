"""The value of a policy in a contextual bandit, from actions that another policy drew.

Shape legend: B contexts, K actions.
"""

from __future__ import annotations

import math

from torch import Tensor

from simic.numerics.shapes import check_same_float

__all__ = ["doubly_robust_value"]


def doubly_robust_value(
    log_probs: Tensor,
    taken: Tensor,
    log_prob_behaviour: Tensor,
    returns: Tensor,
    predicted: Tensor,
    max_weight: float,
) -> Tensor:
    """Return the doubly robust value [B] with a bounded weight (Dudik et al. 2014, section 3).

        sum over b of pi(b) q(b)  +  min(pi(a) / mu(a), max_weight) (R - q(a))

    Over actions drawn from mu its mean is the value of pi, whatever q is, as long as no weight reaches the bound. A
    weight at the bound has no gradient, and no weight overflows.

    Args:
        log_probs: [B, K], log pi of every action; finite.
        taken: int64 [B], the action a.
        log_prob_behaviour: [B], log mu(a).
        returns: [B], the return R of a.
        predicted: [B, K], q.
        max_weight: bound on the weight, above 0.

    Raises:
        ValueError: for other shapes, dtypes or devices, or a bound that is not above 0.
    """
    check_same_float("log_probs", {"log_probs": log_probs, "predicted": predicted})
    check_same_float("returns", {"returns": returns, "log_prob_behaviour": log_prob_behaviour})
    if log_probs.dim() != 2 or returns.shape != log_probs.shape[:1] or taken.shape != returns.shape:
        raise ValueError(
            f"expected log_probs [B, K], taken [B] and returns [B], found {tuple(log_probs.shape)}, "
            f"{tuple(taken.shape)} and {tuple(returns.shape)}"
        )
    if not max_weight > 0.0:
        raise ValueError(f"max_weight must be a number above 0, found {max_weight}")
    action = taken.unsqueeze(1)
    log_ratio = log_probs.gather(1, action).squeeze(1) - log_prob_behaviour
    weight = log_ratio.clamp(max=math.log(max_weight)).exp()
    return (log_probs.exp() * predicted).sum(1) + weight * (returns - predicted.gather(1, action).squeeze(1))
