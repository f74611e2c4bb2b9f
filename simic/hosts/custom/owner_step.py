"""What happens between an owner's backward passes and the optimiser step that follows them."""

from __future__ import annotations

import torch
from torch import Tensor

from simic.hosts.custom.isolated import KeptPass

__all__ = ["Batch", "OwnerStep"]

Batch = tuple[KeptPass, Tensor]
"""A training pass of the owner, and its labels."""
_MOST_WAITING = 64
"""Batches between two optimiser steps of which the inputs are kept for seeds that learn alone."""


class OwnerStep:
    """What the passes since the latest optimiser step leave for the next one."""

    def __init__(self) -> None:
        self.batches: list[Batch] = []
        """On which seeds that learn alone learn."""
        self._norms: dict[str, Tensor] = {}
        self._scale: list[Tensor] = []

    @property
    def is_empty(self) -> bool:
        """Return whether nothing is kept of a batch."""
        return not self._scale and not self.batches

    def add_batch(self, batch: Batch) -> None:
        """Keep a batch, if there is room."""
        if len(self.batches) < _MOST_WAITING:
            self.batches.append(batch)

    def keep_scale(self, gradient: Tensor) -> None:
        """Keep the gradient that arrives at the loss: a scaler's factor over the number of accumulated batches."""
        self._scale.append(gradient.detach())

    def keep_norm(self, name: str, parameter: Tensor) -> None:
        """Keep the norm of a parameter's gradient."""
        if parameter.grad is not None:
            gradient = parameter.grad.coalesce().values() if parameter.grad.is_sparse else parameter.grad
            self._norms[name] = torch.linalg.vector_norm(gradient)

    def set_norm(self, name: str, norm: Tensor) -> None:
        """Replace the norm of a parameter's gradient."""
        self._norms[name] = norm

    def scale(self) -> float:
        """Return the factor on the gradients, by which their norms are divided."""
        return abs(float(sum(self._scale))) or 1.0 if self._scale else 1.0

    def norms(self) -> dict[str, float]:
        """Return the norms of gradients by parameter."""
        measured = torch.stack(list(self._norms.values())).tolist() if self._norms else []
        return dict(zip(self._norms, measured, strict=True))

    def forget(self) -> None:
        """Keep nothing."""
        self.batches.clear()
        self._norms.clear()
        self._scale.clear()
