"""The learner: AdamW for policy and value, and the update step."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor
from torch.optim import Optimizer

from simic.contracts.config import TrainConfig
from simic.contracts.errors import DivergenceError
from simic.controllers.network import PolicyNetwork
from simic.learning.clipping import GRAD_NORM, clip_by_group
from simic.learning.history import History
from simic.learning.losses import Loss
from simic.learning.micro_batches import add_up, split_rows
from simic.learning.rates import LrController, LrPolicy, LrSchedule

__all__ = ["Learner"]

_LOSS = "loss"
"""Name of the loss among what an update reads from the device."""


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
        self.penalty: Callable[[PolicyNetwork], Tensor] | None = None
        """Returns what is added to every loss; its value is the metric ``ewc_penalty``."""
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

    def update(
        self, rows: int, loss_of: Callable[[slice], Loss], schedule: LrSchedule, position: int
    ) -> dict[str, float]:
        """Compute and check the loss, run backward, check gradients, clip per group, step, and clear the gradients.

        An update that a resumed training repeats computes no loss, and returns what was recorded of it.

        Args:
            rows: number of rows of the update: sequences, decisions or steps.
            loss_of: returns the loss of consecutive rows. It is called for each part of at most ``largest_part`` rows,
                from the first to the last. The gradient is the mean over parts weighted by their share of the rows. A
                part that begins at row 0 begins the update, also once more.
            schedule, position: of the learning rates.

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
        rates = self._rates.apply(share)
        try:
            found = self._backward(rows, loss_of)
            found |= self._clip()
            names = list(found)
            metrics = dict(zip(names, torch.stack([found[name] for name in names]).tolist(), strict=True))
            loss = metrics.pop(_LOSS)
            norms = {name: metrics[name] for name in names if name.startswith(GRAD_NORM)}
            self._require_finite({_LOSS: loss, **norms}, metrics)
            self.optimizer.step()
        finally:
            self.optimizer.zero_grad(set_to_none=True)
        self.updates += 1
        return {**metrics, **rates}

    def largest_part(self, rows: int) -> int:
        """Return the most rows that an update of ``rows`` processes at once; every bound on a part is asked here."""
        bounds = (self.history.largest_part(rows), self._config.micro_batch_sequences)
        return min(bound for bound in bounds if bound is not None)

    def _backward(self, rows: int, loss_of: Callable[[slice], Loss]) -> dict[str, Tensor]:
        """Add up gradients and metrics over the parts; ``_LOSS`` is the loss."""
        found: dict[str, Tensor] = {}
        for part in split_rows(rows, self.largest_part(rows)):
            loss = self._loss(loss_of, part.rows)
            (loss.total * part.share).backward()  # type: ignore[no-untyped-call]
            add_up(found, loss._replace(metrics={**loss.metrics, _LOSS: loss.total.detach()}), part.share)
        return found

    def _loss(self, loss_of: Callable[[slice], Loss], rows: slice) -> Loss:
        self.network.train()
        try:
            loss = self.history.assembled(lambda: loss_of(rows))
            if self.penalty is None:
                return loss
            penalty = self.penalty(self.network)
            return loss._replace(total=loss.total + penalty, metrics={**loss.metrics, "ewc_penalty": penalty.detach()})
        finally:
            self.network.eval()

    def _clip(self) -> dict[str, Tensor]:
        """Clip each group that has gradients, and return the metrics of ``clip_by_group``."""
        return clip_by_group(self.optimizer.param_groups, self._config.clip_norm)

    def _require_finite(self, checked: dict[str, float], metrics: dict[str, float]) -> None:
        for what, value in checked.items():
            if not math.isfinite(value):
                raise DivergenceError(
                    f"{what} is {value} at update {self.updates}; nothing was changed by it. Metrics: {metrics}"
                )
