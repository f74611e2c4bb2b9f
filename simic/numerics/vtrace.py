"""V-trace: off-policy corrected value targets and policy-gradient advantages.

Espeholt et al. 2018, "IMPALA", section 4.1. Shape legend: T time, B batch; time-major.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from simic.numerics.shapes import check_same_float, check_time_batch

__all__ = ["LOG_RATIO_LIMIT", "VTrace", "vtrace"]

LOG_RATIO_LIMIT = 20.0
"""Log-ratios are clamped to +-20 before ``exp``: beyond that every ratio is truncated anyway."""


class VTrace(NamedTuple):
    """Targets and advantages, without gradients."""

    vs: Tensor
    """[T, B] value targets."""
    pg_advantages: Tensor
    """[T, B] advantages, already weighted by ``min(pg_rho_bar, pi/mu)``."""
    ratios: Tensor
    """[T, B] ``pi/mu`` after the clamp and before any truncation."""
    clamp_count: Tensor
    """int64 [], number of clamped log-ratios."""


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
    _check(floats, is_cut, {"rho_bar": rho_bar, "c_bar": c_bar, "pg_rho_bar": pg_rho_bar, "lambda_": lambda_})
    log_ratios = log_prob_target - log_prob_behaviour
    clamp_count = (log_ratios.abs() > LOG_RATIO_LIMIT).sum()
    ratios = log_ratios.clamp_(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT).exp_()
    targets = torch.addcmul(rewards, discounts, next_values)
    deltas = ratios.clamp(max=rho_bar).mul_(targets - values)
    decays = ratios.clamp(max=c_bar).mul_(discounts).mul_(lambda_).masked_fill_(is_cut, 0.0)
    corrections = _reverse_scan(decays, deltas)
    vs = values + corrections
    next_vs = next_values.clone()
    next_vs[:-1] = torch.where(is_cut[:-1], next_values[:-1], vs[1:])
    advantages = torch.addcmul(rewards, discounts, next_vs).sub_(values).mul_(ratios.clamp(max=pg_rho_bar))
    return VTrace(vs, advantages, ratios, clamp_count)


def _check(floats: dict[str, Tensor], is_cut: Tensor, bounds: dict[str, float]) -> None:
    shape = check_time_batch("rewards", floats["rewards"])
    check_same_float("rewards", floats)
    if tuple(is_cut.shape) != shape or is_cut.dtype != torch.bool:
        raise ValueError(f"is_cut: expected {shape} torch.bool, found {tuple(is_cut.shape)} {is_cut.dtype}")
    for name, bound in bounds.items():
        if not bound >= 0.0:
            raise ValueError(f"{name} must be a number >= 0, found {bound}")
    if bounds["lambda_"] > 1.0:
        raise ValueError(f"lambda_ must lie in [0, 1], found {bounds['lambda_']}")


def _reverse_scan(decays: Tensor, deltas: Tensor) -> Tensor:
    """``x_t = deltas_t + decays_t x_{t+1}`` with ``x_T = 0``, all [T, B], in log2 T whole-tensor rounds.

    Each round doubles the number of terms that every row has summed (Hillis and Steele 1986). Products of decays
    are formed ahead of the deltas they meet, and with ``c_bar`` above 1 they can leave float32: hence float64.
    """
    steps = deltas.shape[0]
    decay, total = decays.double(), deltas.to(torch.float64, copy=True)
    reach = 1
    while reach < steps:
        # Rows from ``steps - reach`` on already include the end and are final; their decays are not used again.
        open_rows = steps - reach
        total[:open_rows] += decay[:open_rows] * total[reach:]
        if open_rows > reach:
            decay = decay[: open_rows - reach] * decay[reach:open_rows]
        reach *= 2
    return total.to(deltas.dtype)
