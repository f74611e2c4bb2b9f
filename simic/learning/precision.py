"""The number format of a learner's losses: float32, or autocast to 16 bits (Micikevicius et al. 2018).

Weights, gradients and moments stay float32, and so does all that a loss computes from the network's outputs. Gradients
of float16 underflow below 6e-8, so the loss is multiplied by a scale, and gradients are divided by it before the clip;
bfloat16 has the exponents of float32 and needs none.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor
from torch.optim import Optimizer

from simic.contracts.settings.training import PrecisionName

__all__ = ["Precision"]

_DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16}
LEAST_SCALE = 1.0
"""An overflow at this scale or below is no matter of the scale: the training has diverged."""


class Precision:
    """Autocast of losses on one device, and the scale of one optimiser's gradients."""

    def __init__(self, name: PrecisionName, device: torch.device) -> None:
        self._dtype, self._device = _DTYPES.get(name), device
        self.scaler = torch.amp.GradScaler(device.type, enabled=name == "float16")
        """Part of the checkpoints; without effect unless the format is float16."""

    def of_loss(self) -> AbstractContextManager[object]:
        """Return the context in which a loss is computed."""
        return nullcontext() if self._dtype is None else torch.autocast(self._device.type, self._dtype)

    def scale(self) -> dict[str, Tensor]:
        """Return ``loss_scale`` [] on the device, or nothing if losses are not scaled."""
        return {"loss_scale": self.scaled(torch.ones((), device=self._device))} if self.scaler.is_enabled() else {}

    def scaled(self, loss: Tensor) -> Tensor:
        """Return the loss times the scale."""
        return self.scaler.scale(loss)

    def unscale(self, optimizer: Optimizer) -> None:
        """Divide the gradients by the scale."""
        self.scaler.unscale_(optimizer)

    def is_overflow(self, *, are_finite: bool, scale: float) -> bool:
        """Return whether gradients that are not finite come from the scale, so that the step is left out."""
        return self.scaler.is_enabled() and not are_finite and scale > LEAST_SCALE

    def adapt(self) -> None:
        """Halve the scale after an overflow; double it after 2,000 updates without one."""
        self.scaler.update()
