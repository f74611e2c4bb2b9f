"""Learning rates: their schedule, and the only place that writes them into an optimiser."""

from __future__ import annotations

import math
from collections.abc import Mapping
from enum import StrEnum
from typing import NamedTuple

from torch.optim import Optimizer

from simic.contracts.errors import ContractError

__all__ = ["LrController", "LrPolicy", "LrSchedule"]

RELATIVE_TOLERANCE = 1e-9
"""Difference between the rate of a group and the one that was written, from which on somebody else has written it."""


class LrSchedule(NamedTuple):
    """Linear warm-up to ``first``, then a cosine decay to ``last``; both are shares of the peak rate."""

    warmup: int
    """Number of updates of the warm-up."""
    length: int
    """Number of updates until ``last``, including the warm-up."""
    first: float
    last: float

    @staticmethod
    def constant(warmup: int, share: float) -> LrSchedule:
        """Return a schedule of warm-up, then ``share`` of the peak rate."""
        return LrSchedule(warmup, warmup + 1, share, share)

    def share(self, update: int) -> float:
        """Return the share of the peak rate at ``update``, counted from 0."""
        ramp = min(1.0, (update + 1) / (self.warmup + 1))
        progress = min(1.0, max(0.0, (update - self.warmup) / max(1, self.length - self.warmup)))
        return ramp * (self.last + (self.first - self.last) * 0.5 * (1.0 + math.cos(math.pi * progress)))


class LrPolicy(StrEnum):
    """Which peak rate a group of parameters follows, by the name of the group.

    Frozen parameters are in no group, and EWC changes a loss and no rate.
    """

    POLICY_NETWORK = "policy"
    VALUE_NETWORK = "value"


class LrController:
    """Writes the rates of one optimiser, and notices if anybody else did."""

    def __init__(self, optimizer: Optimizer, peaks: Mapping[LrPolicy, float], minimum: float) -> None:
        """Take charge of ``optimizer``, whose groups are named by ``LrPolicy`` and begin at their peak rates.

        Raises:
            ContractError: for a group without a policy, or one that does not begin at its peak.
        """
        self._optimizer, self._minimum = optimizer, minimum
        names = [str(group.get("name")) for group in optimizer.param_groups]
        if unknown := set(names) - {policy.value for policy in peaks}:
            raise ContractError(
                f"parameter groups need a declared learning-rate policy: expected {[*map(str, peaks)]}, "
                f"found {sorted(unknown)}"
            )
        self._peaks = [peaks[LrPolicy(name)] for name in names]
        self._written = list(self._peaks)
        self._require_untouched()

    def apply(self, share: float) -> dict[str, float]:
        """Set every group's rate to ``share`` of its peak, at least the minimum; returns the rates by group name.

        Raises:
            ContractError: if a rate is not the one that was written last.
        """
        self._require_untouched()
        self._written = [max(self._minimum, share * peak) for peak in self._peaks]
        for group, rate in zip(self._optimizer.param_groups, self._written, strict=True):
            group["lr"] = rate
        return {f"lr_{group['name']}": group["lr"] for group in self._optimizer.param_groups}

    def _require_untouched(self) -> None:
        for group, rate in zip(self._optimizer.param_groups, self._written, strict=True):
            if not math.isclose(group["lr"], rate, rel_tol=RELATIVE_TOLERANCE):
                raise ContractError(
                    f"the learning rate of group {group['name']} is {group['lr']}, expected {rate} as the controller "
                    "set it: change rates by the schedule of an update or by the settings, not in the optimiser"
                )
