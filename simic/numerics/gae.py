"""Generalised advantage estimation.

Schulman et al. 2016, "High-Dimensional Continuous Control Using Generalized Advantage Estimation", equation 16.
Shape legend: T time, B batch; time-major.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from simic.numerics.scan import reverse_scan
from simic.numerics.shapes import check_bounds, check_cuts, check_same_float, check_time_batch

__all__ = ["Gae", "gae"]


class Gae(NamedTuple):
    """Advantages and value targets, without gradients."""

    advantages: Tensor
    """[T, B]"""
    returns: Tensor
    """[T, B]: lambda-returns, the advantages plus the values."""


@torch.no_grad()
def gae(
    *, rewards: Tensor, discounts: Tensor, values: Tensor, next_values: Tensor, is_cut: Tensor, lambda_: float
) -> Gae:
    """Compute advantages over [T, B] rows in which sequences may end anywhere.

    ::

        delta_t = r_t + d_t V'_t - V_t
        A_t     = delta_t + d_t lambda A_{t+1}        (no second term at a cut)

    ``discounts`` d_t is 0 where the step terminated. ``next_values`` V'_t is the value of the step's own successor: at
    a truncated step that of its own final state, never that of the next row. ``is_cut`` (bool) is true where the next
    row does not continue this one, and in padding; the last row always counts as a cut. Padding whose reward, discount
    and value are 0 has advantage 0. All other arguments share one floating dtype, which the results keep; the
    recursion runs in float64.

    Raises:
        ValueError: for wrong shapes or dtypes, or ``lambda_`` outside [0, 1].
    """
    floats = {"rewards": rewards, "discounts": discounts, "values": values, "next_values": next_values}
    shape = check_time_batch("rewards", rewards)
    check_same_float("rewards", floats)
    check_cuts(is_cut, shape)
    check_bounds({"lambda_": lambda_})
    deltas = torch.addcmul(rewards, discounts, next_values).sub_(values)
    advantages = reverse_scan((discounts * lambda_).masked_fill_(is_cut, 0.0), deltas)
    return Gae(advantages, advantages + values)
