"""The learner: AdamW for policy and value, and the update step."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from simic.contracts.config import TrainConfig
from simic.contracts.errors import DivergenceError
from simic.controllers.network import PolicyNetwork
from simic.learning.history import History
from simic.learning.losses import Loss
from simic.learning.rates import LrController, LrPolicy, LrSchedule

__all__ = ["Learner"]


class Learner:
    """A network with AdamW, one parameter group for the policy and one for the value."""

    def __init__(
        self, network: PolicyNetwork, config: TrainConfig, history: History | None = None, name: str = "policy"
    ) -> None:
        """Join the ``history`` of a training under a name that no other learner has at the same time.

        Frozen parameters belong to no group. The network is in training mode within the loss of an update only.
        """
        self.network, self._config = network, config
        self.history = History() if history is None else history
        self.updates = 0
        """Optimiser steps so far, over all phases and rounds."""
        parameters = {
            LrPolicy.POLICY_NETWORK: network.policy_parameters(),
            LrPolicy.VALUE_NETWORK: network.value_parameters(),
        }
        peaks = {LrPolicy.POLICY_NETWORK: config.policy_lr, LrPolicy.VALUE_NETWORK: config.value_lr}
        self.optimizer: Optimizer = torch.optim.AdamW(
            [
                {"name": policy.value, "params": [one for one in own if one.requires_grad], "lr": peaks[policy]}
                for policy, own in parameters.items()
            ],
            weight_decay=config.weight_decay,
            foreach=True,
        )
        self._rates = LrController(self.optimizer, peaks, config.min_lr)
        network.eval()
        self.history.add_learner(name, self)

    def update(self, compute: Callable[[], Loss], schedule: LrSchedule, position: int) -> dict[str, float]:
        """Compute and check the loss, run backward, check gradients, clip per group, step, and clear the gradients.

        An update that a resumed training repeats computes no loss, and returns what was recorded of it.

        Returns:
            The loss's metrics, gradient norms and learning rates.

        Raises:
            DivergenceError: if the loss or a gradient is not finite; the parameters are unchanged.
            ContractError: if anybody but the schedule has changed a learning rate.
            CircuitOpenError: if the batch cannot be read.
        """
        if (recorded := self.history.next_update(self)) is not None:
            return recorded
        share = schedule.share(position) * self.history.lr_factor
        rates, loss = self._rates.apply(share), self._loss(compute)
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

    def _loss(self, compute: Callable[[], Loss]) -> Loss:
        self.network.train()
        try:
            return self.history.assembled(compute)
        finally:
            self.network.eval()

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
