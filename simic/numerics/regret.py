"""Regret over tried alternatives, and the logit that keeps an alternative from being chosen.

Shapes: B decisions, C alternatives.
"""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["IMPOSSIBLE", "regret_of"]

IMPOSSIBLE = -1e30
"""Logit of an alternative that cannot be chosen, and return of one that was not tried. It is finite, so that 0 times it
and its gradient are 0, and a difference of two is a number."""


def regret_of(returns: Tensor) -> Tensor:
    """Return [B, C]: points that each alternative loses against the best tried one, from ``returns`` [B, C].

    A return of NaN means that the alternative was not tried; its regret is 0.
    """
    known = returns.nan_to_num(IMPOSSIBLE)
    return torch.where(returns.isnan(), 0.0, known.amax(1, keepdim=True) - known)
