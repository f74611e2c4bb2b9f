"""One optimiser over policy and value, and the one order in which an update happens."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from simic.contracts.config import TrainConfig
from simic.contracts.errors import TrainingFailure
from simic.controllers.network import PolicyNetwork
from simic.learning.losses import Loss
from simic.learning.rates import Schedule, apply_rates

__all__ = ["Learner"]

GROUPS = ("policy", "value")


class Learner:
    """Network and AdamW with a group for the policy and one for the value."""

    def __init__(self, network: PolicyNetwork, config: TrainConfig) -> None:
        self.network, self._config = network, config
        self.updates = 0
        """Optimiser steps so far, over all phases and rounds."""
        parameters = {"policy": network.policy_parameters(), "value": network.value_parameters()}
        peaks = {"policy": config.policy_lr, "value": config.value_lr}
        self.optimizer = torch.optim.AdamW(
            [{"name": name, "params": parameters[name], "lr": peaks[name], "peak_lr": peaks[name]} for name in GROUPS],
            weight_decay=config.weight_decay,
            foreach=True,
        )

    def update(self, loss: Loss, schedule: Schedule, position: int) -> dict[str, float]:
        """Finite check, backward, finite check, clip per group, step, zero grad; the loss's metrics and the norms.

        Raises TrainingFailure, with the parameters untouched, if the loss or a gradient is not finite. Gradients never
        outlive the call, whatever happens in it.
        """
        rates = apply_rates(self.optimizer, schedule.share(position), self._config.min_lr)
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
        """Norm of each group before clipping; a group without gradients has none and is left alone."""
        norms: dict[str, Tensor] = {}
        for group in self.optimizer.param_groups:
            touched = [parameter for parameter in group["params"] if parameter.grad is not None]
            if touched:
                norms[f"grad_norm_{group['name']}"] = nn.utils.clip_grad_norm_(touched, self._config.clip_norm)
        return {name: float(norm) for name, norm in norms.items()}

    def _require_finite(self, what: str, value: float, metrics: dict[str, float]) -> None:
        if not math.isfinite(value):
            raise TrainingFailure(
                f"{what} is {value} at update {self.updates}; nothing was changed by it. Metrics: {metrics}"
            )
