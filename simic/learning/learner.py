"""The learner: AdamW with learning-rate schedules for policy and value, and the update step."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from simic.contracts.config import TrainConfig
from simic.contracts.errors import DivergenceError
from simic.controllers.network import PolicyNetwork
from simic.learning.history import History
from simic.learning.losses import Loss

__all__ = ["Learner", "LrSchedule", "apply_lr_schedule"]


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


def apply_lr_schedule(optimizer: Optimizer, share: float, minimum: float) -> dict[str, float]:
    """Set every group's rate to ``share`` of its peak, at least ``minimum``; returns the rates by group name."""
    rates = {}
    for group in optimizer.param_groups:
        group["lr"] = max(minimum, share * group["peak_lr"])
        rates[f"lr_{group['name']}"] = group["lr"]
    return rates


GROUPS = ("policy", "value")


class Learner:
    """A network with AdamW, one parameter group for the policy and one for the value."""

    def __init__(
        self, network: PolicyNetwork, config: TrainConfig, history: History | None = None, name: str = "policy"
    ) -> None:
        """Join the ``history`` of a training under a name that no other learner has at the same time."""
        self.network, self._config = network, config
        self.history = History() if history is None else history
        self.updates = 0
        """Optimiser steps so far, over all phases and rounds."""
        parameters = {"policy": network.policy_parameters(), "value": network.value_parameters()}
        peaks = {"policy": config.policy_lr, "value": config.value_lr}
        self.optimizer: Optimizer = torch.optim.AdamW(
            [{"name": name, "params": parameters[name], "lr": peaks[name], "peak_lr": peaks[name]} for name in GROUPS],
            weight_decay=config.weight_decay,
            foreach=True,
        )
        self.history.add_learner(name, self)

    def update(self, compute: Callable[[], Loss], schedule: LrSchedule, position: int) -> dict[str, float]:
        """Compute and check the loss, run backward, check gradients, clip per group, step, and clear the gradients.

        An update that a resumed training repeats computes no loss, and returns what was recorded of it.

        Returns:
            The loss's metrics, gradient norms and learning rates.

        Raises:
            DivergenceError: if the loss or a gradient is not finite; the parameters are unchanged.
        """
        if (recorded := self.history.next_update(self)) is not None:
            return recorded
        share = schedule.share(position) * self.history.lr_factor
        rates, loss = apply_lr_schedule(self.optimizer, share, self._config.min_lr), compute()
        metrics = dict(zip(loss.metrics, torch.stack(list(loss.metrics.values())).tolist(), strict=True))
        self._require_finite("loss", float(loss.total.detach()), metrics)
        try:
            loss.total.backward()  # type: ignore[no-untyped-call]
            norms = self._clip()
            for name, norm in norms.items():
                self._require_finite(name, norm, metrics)
            self.optimizer.step()
        finally:
            self.optimizer.zero_grad(set_to_none=True)
        self.updates += 1
        return {**metrics, **norms, **rates}

    def _clip(self) -> dict[str, float]:
        """Clip each group that has gradients; returns their norms before clipping."""
        norms: dict[str, Tensor] = {}
        for group in self.optimizer.param_groups:
            touched = [parameter for parameter in group["params"] if parameter.grad is not None]
            if touched:
                norms[f"grad_norm_{group['name']}"] = nn.utils.clip_grad_norm_(touched, self._config.clip_norm)
        return {name: float(norm) for name, norm in norms.items()}

    def _require_finite(self, what: str, value: float, metrics: dict[str, float]) -> None:
        if not math.isfinite(value):
            raise DivergenceError(
                f"{what} is {value} at update {self.updates}; nothing was changed by it. Metrics: {metrics}"
            )
