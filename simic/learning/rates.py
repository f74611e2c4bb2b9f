"""The only place that sets a learning rate."""

from __future__ import annotations

import math
from typing import NamedTuple

from torch.optim import Optimizer

__all__ = ["Schedule", "apply_rates"]


class Schedule(NamedTuple):
    """Linear warm-up to ``first``, then a cosine down to ``last``; both are shares of the peak rate."""

    warmup: int
    """Updates."""
    length: int
    """Updates until ``last``, warm-up included."""
    first: float
    last: float

    @staticmethod
    def constant(warmup: int, share: float) -> Schedule:
        """Warm-up, then ``share`` of the peak."""
        return Schedule(warmup, warmup + 1, share, share)

    def share(self, update: int) -> float:
        """Share of the peak rate at ``update`` (0 is the first)."""
        ramp = min(1.0, (update + 1) / (self.warmup + 1))
        progress = min(1.0, max(0.0, (update - self.warmup) / max(1, self.length - self.warmup)))
        return ramp * (self.last + (self.first - self.last) * 0.5 * (1.0 + math.cos(math.pi * progress)))


def apply_rates(optimizer: Optimizer, share: float, minimum: float) -> dict[str, float]:
    """Sets every group to ``share`` of its own peak, at least ``minimum``; the rates by group name."""
    rates = {}
    for group in optimizer.param_groups:
        group["lr"] = max(minimum, share * group["peak_lr"])
        rates[f"lr_{group['name']}"] = group["lr"]
    return rates
