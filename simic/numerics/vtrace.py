"""V-trace: off-policy corrected value targets and policy-gradient advantages.

Espeholt et al. 2018, "IMPALA", section 4.1. Shape legend: T time, B batch; time-major.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from simic.numerics.importance import LOG_RATIO_LIMIT
from simic.numerics.scan import reverse_scan
from simic.numerics.shapes import check_bounds, check_cuts, check_same_float, check_time_batch

__all__ = ["VTrace", "vtrace"]


class VTrace(NamedTuple):
    """Targets and advantages, without gradients."""

    vs: Tensor
    """[T, B] value targets."""
    pg_advantages: Tensor
    """[T, B] advantages, already weighted by ``min(pg_rho_bar, pi/mu)``."""
    ratios: Tensor
    """[T, B] ``pi/mu`` after the clamp and before any truncation."""
    log_ratios: Tensor
    """[T, B] ``log pi - log mu`` before the clamp."""

    @property
    def clamp_count(self) -> Tensor:
        """Return int64 [], the number of clamped log-ratios."""
        return (self.log_ratios.abs() > LOG_RATIO_LIMIT).sum()


@torch.no_grad()
def vtrace(
    *,
    log_prob_target: Tensor,
    log_prob_behaviour: Tensor,
    rewards: Tensor,
    discounts: Tensor,
    values: Tensor,
    next_values: Tensor,
    is_cut: Tensor,
    rho_bar: float = 1.0,
    c_bar: float = 1.0,
    pg_rho_bar: float = 1.0,
    lambda_: float = 1.0,
) -> VTrace:
    """Compute V-trace over [T, B] rows in which sequences may end anywhere.

    With ``rho_t = min(rho_bar, pi/mu)`` and ``c_t = lambda min(c_bar, pi/mu)``::

        delta_t = rho_t (r_t + d_t V'_t - V_t)
        vs_t    = V_t + delta_t + d_t c_t (vs_{t+1} - V_{t+1})        (no third term at a cut)
        adv_t   = min(pg_rho_bar, pi/mu) (r_t + d_t vs'_t - V_t)      (vs'_t = V'_t at a cut, else vs_{t+1})

    ``discounts`` d_t is 0 where the step terminated. ``next_values`` V'_t is the value of the step's own successor:
    at a cut that of its own final state, never that of the next row. ``is_cut`` (bool) is true where the next row
    does not continue this one; the last row always counts as a cut. All other arguments share one floating dtype,
    which the results keep; the recursion itself runs in float64.
    """
    floats = {
        "log_prob_target": log_prob_target,
        "log_prob_behaviour": log_prob_behaviour,
        "rewards": rewards,
        "discounts": discounts,
        "values": values,
        "next_values": next_values,
    }
    shape = check_time_batch("rewards", rewards)
    check_same_float("rewards", floats)
    check_cuts(is_cut, shape)
    check_bounds({"rho_bar": rho_bar, "c_bar": c_bar, "pg_rho_bar": pg_rho_bar, "lambda_": lambda_})
    log_ratios = log_prob_target - log_prob_behaviour
    ratios = log_ratios.clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT).exp_()
    targets = torch.addcmul(rewards, discounts, next_values)
    bounded = {bound: ratios.clamp(max=bound) for bound in {rho_bar, c_bar, pg_rho_bar}}
    decays = bounded[c_bar] * discounts
    if lambda_ != 1.0:
        decays.mul_(lambda_)
    decays.masked_fill_(is_cut, 0.0)
    vs = values + reverse_scan(decays, targets.sub_(values).mul_(bounded[rho_bar]))
    next_vs = torch.cat([torch.where(is_cut[:-1], next_values[:-1], vs[1:]), next_values[-1:]])
    advantages = torch.addcmul(rewards, discounts, next_vs).sub_(values).mul_(bounded[pg_rho_bar])
    return VTrace(vs, advantages, ratios, log_ratios)
