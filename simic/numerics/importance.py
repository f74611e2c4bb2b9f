"""Log-ratios of two policies on logged actions, and their products along episodes.

The off-policy estimates form their ratios here, and V-trace shares the bound. Shape legend: T time, B batch of
episodes; time-major.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

__all__ = ["LOG_RATIO_LIMIT", "LOG_WEIGHT_LIMIT", "LogRatios", "LogWeights", "cumulative_log_weights", "log_ratios"]

LOG_RATIO_LIMIT = 20.0
"""Log-ratios of a step are clamped to +-20 before ``exp``."""
LOG_WEIGHT_LIMIT = 300.0
"""Largest logarithm of the weight of an episode: its square and the square's sum over episodes fit into float64."""


class LogRatios(NamedTuple):
    """Logarithms of pi/mu of each step."""

    values: Tensor
    """[T, B], clamped."""
    clamp_count: Tensor
    """int64 [], number of clamped log-ratios."""


class LogWeights(NamedTuple):
    """Logarithms of the products of an episode's ratios."""

    values: Tensor
    """float64 [T, B], of the steps up to and including t; -inf where the target cannot take an action on the way."""
    clamp_count: Tensor
    """int64 [], number of clamped ratios of steps, and of weights of whole episodes."""


def log_ratios(log_prob_target: Tensor, log_prob_behaviour: Tensor) -> LogRatios:
    """Return log pi - log mu of joint log-probabilities [T, B], clamped to +-``LOG_RATIO_LIMIT``.

    The joint log-probability of an action is the sum over its relevant heads; it is 0 for both in padding.
    """
    values = log_prob_target - log_prob_behaviour
    clamp_count = (values.abs() > LOG_RATIO_LIMIT).sum()
    return LogRatios(values.clamp_(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT), clamp_count)


def cumulative_log_weights(log_prob_target: Tensor, log_prob_behaviour: Tensor, valid: Tensor) -> LogWeights:
    """Return the log-weights of all prefixes of episodes; after an episode's end its last weight stays.

    A target log-probability of -inf is an action that the target never takes: the weight is 0 from there on and the
    step does not count as clamped. ``valid`` bool [T, B] is false in padding, whose log-probabilities are ignored.
    """
    impossible = torch.isneginf(log_prob_target) & valid
    used = valid & ~impossible
    ratios = log_ratios(log_prob_target.double().where(used, 0.0), log_prob_behaviour.double().where(used, 0.0))
    sums = ratios.values.cumsum(0)
    blocked = impossible.cumsum(0) > 0
    clamped = (sums[-1] > LOG_WEIGHT_LIMIT) & ~blocked[-1]
    values = sums.clamp_(max=LOG_WEIGHT_LIMIT).masked_fill_(blocked, -torch.inf)
    return LogWeights(values, ratios.clamp_count + clamped.sum())
