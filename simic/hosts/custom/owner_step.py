"""What happens between an owner's backward passes and the optimiser step that follows them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from math import isfinite, nan

import torch
from torch import Tensor

from simic.hosts.custom.isolated import KeptPass

__all__ = ["Batch", "OwnerStep"]

Batch = tuple[KeptPass, Tensor]
"""A training pass of the owner, and its labels."""
_MOST_WAITING = 64
"""Batches between two optimiser steps of which the inputs are kept for seeds that learn alone."""


class OwnerStep:
    """What the backward passes since the latest optimiser step leave for the next one."""

    def __init__(self, trained: Callable[[], Iterable[Tensor]]) -> None:
        """Take what returns the parameters that the owner trains."""
        self.batches: list[Batch] = []
        """On which seeds that learn alone learn."""
        self._trained = trained
        self._norms: dict[str, Tensor] = {}
        self._scale: list[Tensor] = []
        self._backward = -1
        """The number that autograd gave the latest backward pass."""

    @property
    def is_empty(self) -> bool:
        """Return whether nothing is kept of a batch."""
        return not self._scale and not self.batches

    def watch(self, loss: Tensor, batch: Batch | None, is_measured: Callable[[], bool]) -> None:
        """Count a batch when its loss is back-propagated; ``batch`` is kept then, if one is given."""
        waiting = [] if batch is None else [batch]
        loss.register_hook(partial(self._begin_backward, waiting, is_measured))  # type: ignore[no-untyped-call]

    def _begin_backward(self, waiting: list[Batch], is_measured: Callable[[], bool], gradient: Tensor) -> None:
        """Keep the gradient that arrives at the loss: a scaler's factor over the number of accumulated batches."""
        number = torch._C._current_graph_task_id()  # noqa: SLF001
        if number != self._backward:
            self._backward = number
            if not self.is_empty and all(parameter.grad is None for parameter in self._trained()):
                self.forget()  # the owner cleared the gradients of batches without a step
        if is_measured():
            self._scale.append(gradient.detach())
        # Taken out, because the owner may keep the loss and with it this hook, or back-propagate it again.
        if waiting and len(self.batches) < _MOST_WAITING:
            self.batches.append(waiting.pop())

    def keep_norm(self, name: str, parameter: Tensor) -> None:
        """Keep the norm of a parameter's gradient."""
        if parameter.grad is not None:
            gradient = parameter.grad.coalesce().values() if parameter.grad.is_sparse else parameter.grad
            self._norms[name] = torch.linalg.vector_norm(gradient)

    def set_norm(self, name: str, norm: Tensor) -> None:
        """Replace the norm of a parameter's gradient."""
        self._norms[name] = norm

    def scale(self) -> float:
        """Return the factor on the gradients, by which their norms are divided; NaN if it is not finite."""
        scale = abs(float(sum(self._scale))) or 1.0 if self._scale else 1.0
        return scale if isfinite(scale) else nan

    def norms(self) -> dict[str, float]:
        """Return the norms of gradients by parameter."""
        measured = torch.stack(list(self._norms.values())).tolist() if self._norms else []
        return dict(zip(self._norms, measured, strict=True))

    def forget(self) -> None:
        """Keep nothing."""
        self.batches.clear()
        self._norms.clear()
        self._scale.clear()
