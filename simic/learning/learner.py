"""The learner: AdamW for policy and value, and the update step."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from simic.contracts.errors import DivergenceError, OutOfMemoryError
from simic.contracts.settings.training import TrainConfig
from simic.controllers.network import GraphNetwork, PolicyNetwork
from simic.learning.clipping import GRAD_NORM, clip_by_group
from simic.learning.history import History
from simic.learning.losses import Loss
from simic.learning.micro_batches import add_up, split_rows
from simic.learning.precision import Precision
from simic.learning.rates import LrController, LrPolicy, LrSchedule
from simic.learning.safety.guard import OUT_OF_MEMORY, Guard
from simic.learning.safety.memory import is_out_of_memory

__all__ = ["Learner", "NetworkLearner"]

_LOG = logging.getLogger(__name__)
Penalty = Callable[[nn.Module], Tensor]

_LOSS = "loss"
"""Name of the loss among what an update reads from the device."""
_PART_ROWS = "micro_batch_rows"
"""Metric of an update: the most rows that it processed at once. A resumed training takes the size of its parts from it
if memory ran out on the way."""


class NetworkLearner:
    """A network with AdamW, one parameter group for the policy and one for the value."""

    network: GraphNetwork

    def __init__(
        self,
        network: GraphNetwork,
        config: TrainConfig,
        history: History | None = None,
        name: str = "policy",
        penalty: Penalty | None = None,
    ) -> None:
        """Join the ``history`` of a training under a name that no other learner has at the same time.

        Frozen parameters belong to no group. The network is in training mode within the loss of an update only. What
        ``penalty`` returns is added to every loss; it is the metric ``ewc_penalty``.
        """
        self.network, self._config = network, config
        self._device = next(network.parameters()).device
        self._fitting: int | None = None
        """Most rows of a part since memory ran out; None if it never did."""
        self.history = History(guard=Guard(config)) if history is None else history
        self.updates = 0
        """Optimiser steps so far, over all phases and rounds."""
        self.penalty = penalty
        parameters = {
            LrPolicy.POLICY_NETWORK: network.policy_parameters(),
            LrPolicy.VALUE_NETWORK: network.value_parameters(),
        }
        peaks = {LrPolicy.POLICY_NETWORK: config.policy_lr, LrPolicy.VALUE_NETWORK: config.value_lr}
        is_cuda = self._device.type == "cuda"
        self.optimizer: Optimizer = torch.optim.AdamW(
            [
                {
                    "name": policy.value,
                    "params": [parameter for parameter in own if parameter.requires_grad],
                    "lr": peaks[policy],
                }
                for policy, own in parameters.items()
            ],
            weight_decay=config.weight_decay,
            foreach=None if is_cuda else True,
            fused=True if is_cuda else None,
        )
        self._precision = Precision(config.precision, self._device)
        self.scaler = self._precision.scaler
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
            DivergenceError: if the loss or a gradient is not finite; the parameters are unchanged. Gradients of float16
                that overflow leave out the step instead, and the count says so.
            OutOfMemoryError: if a single row needs more memory than there is.
            ContractError: if anybody but the schedule has changed a learning rate.
            CircuitOpenError: if the batch cannot be read.
        """
        if (recorded := self.history.next_update(self)) is not None:
            if recorded[OUT_OF_MEMORY]:
                self._fitting = int(recorded[_PART_ROWS])
            return recorded
        share = schedule.share(position) * self.history.guard.lr_factor
        rates = self._rates.apply(share)
        try:
            tensors, memory = self._gradients(rows, loss_of)
            tensors |= self._precision.scale()
            self._precision.unscale(self.optimizer)
            tensors |= self._clip()
            metrics = dict(zip(tensors, torch.stack(list(tensors.values())).cpu().tolist(), strict=True))
            self._require_finite({_LOSS: metrics.pop(_LOSS)}, metrics)
            overflow = self._step(metrics)
        finally:
            self.optimizer.zero_grad(set_to_none=True)
        self.updates += 1
        return {**metrics, **overflow, **memory, **rates}

    def _gradients(self, rows: int, loss_of: Callable[[slice], Loss]) -> tuple[dict[str, Tensor], dict[str, float]]:
        """Compute gradients in parts that fit into memory; returns what to read from the device, and the parts.

        Raises:
            OutOfMemoryError: if a single row does not fit.
        """
        halvings = 0
        while True:
            most = self.largest_part(rows)
            try:
                return self._backward(rows, most, loss_of), _parts(most, halvings)
            except (RuntimeError, MemoryError) as error:
                if not is_out_of_memory(error):
                    raise
                message = str(error)
            # The error is gone here, and with it the frames that hold the memory of the attempt.
            self.optimizer.zero_grad(set_to_none=True)
            self._halve(rows, most, message)
            halvings += 1

    def largest_part(self, rows: int) -> int:
        """Return the most rows that an update of ``rows`` processes at once; every bound on a part is asked here."""
        bounds = (self.history.guard.largest_part(rows), self._config.micro_batch_sequences, self._fitting)
        return max(1, min(bound for bound in bounds if bound is not None))

    def _halve(self, rows: int, most: int, message: str) -> None:
        if most == 1:
            raise OutOfMemoryError(
                f"update {self.updates} needs more memory than there is for 1 of its {rows} rows: {message.strip()}. "
                "Lower train.network.hidden or train.network.layers, or give the training more memory; it resumes "
                "from its newest checkpoint"
            )
        self._fitting = most // 2
        if self._device.type == "cuda":
            torch.cuda.empty_cache()
        _LOG.warning(
            "memory ran out at update %d with %d rows at once; it is repeated with %d", self.updates, most, most // 2
        )

    def _backward(self, rows: int, most: int, loss_of: Callable[[slice], Loss]) -> dict[str, Tensor]:
        """Add up gradients and metrics over the parts; ``_LOSS`` is the loss."""
        totals: dict[str, Tensor] = {}
        for part in split_rows(rows, most):
            loss = self._loss(loss_of, part.rows)
            self._precision.scaled(loss.total * part.share).backward()  # type: ignore[no-untyped-call]
            add_up(totals, {**loss.metrics, _LOSS: loss.total.detach()}, part.share)
        return totals

    def _loss(self, loss_of: Callable[[slice], Loss], rows: slice) -> Loss:
        self.network.train()
        try:
            with self._precision.of_loss():
                # A batch that cannot be read is read again as long as the breaker lets it.
                loss = self.history.guard.breakers.sampling.call(lambda: loss_of(rows))
            if self.penalty is None:
                return loss
            penalty = self.penalty(self.network)
            return loss._replace(total=loss.total + penalty, metrics={**loss.metrics, "ewc_penalty": penalty.detach()})
        finally:
            self.network.eval()

    def _step(self, metrics: dict[str, float]) -> dict[str, float]:
        """Step, unless float16 gradients overflowed; returns the count of overflows, if losses are scaled."""
        norms = {name: norm for name, norm in metrics.items() if name.startswith(GRAD_NORM)}
        are_finite = all(map(math.isfinite, norms.values()))
        scale = metrics.get("loss_scale", 0.0)
        is_overflow = self._precision.is_overflow(are_finite=are_finite, scale=scale)
        if not is_overflow:
            self._require_finite(norms, metrics)
            self._make_step()
        self._precision.adapt()
        if not self.scaler.is_enabled():
            return {}
        # What a checkpoint cannot hold as a number: the norms of an update that was left out.
        metrics.update({name: 0.0 for name in metrics if is_overflow and GRAD_NORM in name})
        return {"overflow_count": float(is_overflow)}

    def _make_step(self) -> None:
        try:
            self.optimizer.step()
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
            raise OutOfMemoryError(  # weights and moments may have changed in part, so nothing is repeated
                f"there is no memory for the moments of update {self.updates}: {error}. Give the training more memory; "
                "it resumes from its newest checkpoint"
            ) from error

    def _clip(self) -> dict[str, Tensor]:
        """Clip each group that has gradients, and return the metrics of ``clip_by_group``."""
        return clip_by_group(self.optimizer.param_groups, self._config.clip_norm)

    def _require_finite(self, checked: dict[str, float], metrics: dict[str, float]) -> None:
        for what, value in checked.items():
            if not math.isfinite(value):
                raise DivergenceError(
                    f"{what} is {value} at update {self.updates}; nothing was changed by it. Metrics: {metrics}"
                )


def _parts(most: int, halvings: int) -> dict[str, float]:
    return {_PART_ROWS: float(most), OUT_OF_MEMORY: float(halvings)}


class Learner(NetworkLearner):
    """The learner of a policy."""

    network: PolicyNetwork

    def __init__(
        self,
        network: PolicyNetwork,
        config: TrainConfig,
        history: History | None = None,
        name: str = "policy",
        penalty: Penalty | None = None,
    ) -> None:
        """Join the ``history`` of a training as ``NetworkLearner`` does."""
        super().__init__(network, config, history, name, penalty)
