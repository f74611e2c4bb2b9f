"""What happens between an owner's backward passes and the optimiser step that follows them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from math import isfinite, nan
from typing import NamedTuple

import torch
from torch import Tensor

from simic.hosts.custom.isolated import KeptPass

__all__ = ["Batch", "OwnerStep"]

Batch = tuple[KeptPass, Tensor]
"""A training pass of the owner, and its labels."""
_MOST_WAITING = 64
"""Batches between two optimiser steps of which the inputs are kept for seeds that learn alone."""


class _Scale(NamedTuple):
    """The gradient that arrived at a loss."""

    value: Tensor
    accumulated: int
    """Gradients that had reached parameters before."""


class OwnerStep:
    """Batches, gradient norms and loss scales of the owner's backward passes since the latest optimiser step."""

    def __init__(self, trained: Callable[[], Iterable[Tensor]]) -> None:
        """Begin empty; ``trained`` returns the parameters that the owner trains."""
        self.batches: list[Batch] = []
        """The batches on which seeds that learn alone are taught in the next step."""
        self._trained = trained
        self._norms: dict[str, Tensor] = {}
        self._scales: dict[int, _Scale] = {}
        self._watched = 0
        self._backward = -1
        """The number that autograd gave the latest backward pass."""
        self._latest: Tensor | None = None
        """The parameter that a gradient reached last, of those of which the norm is kept."""
        self._version = 0
        """Number of writes to its gradient until then."""
        self.accumulated = 0
        """Gradients that reached parameters since the latest step; ``torch.autograd.grad`` gives none to them."""

    @property
    def is_empty(self) -> bool:
        """Return whether nothing is kept of a batch."""
        return not self._scales and not self.batches

    def watch(self, loss: Tensor, logits: Tensor, batch: Batch | None, is_measured: Callable[[], bool]) -> None:
        """Count a batch when its loss is back-propagated.

        ``batch``, if one is given, is kept when its ``logits`` get a gradient, which may be that of another loss.
        """
        self._watched += 1
        loss.register_hook(partial(self._keep_scale, self._watched, is_measured))  # type: ignore[no-untyped-call]
        if batch is not None and logits.requires_grad:
            logits.register_hook(partial(self._keep_batch, [batch]))  # type: ignore[no-untyped-call]

    def _keep_scale(self, watched: int, is_measured: Callable[[], bool], gradient: Tensor) -> None:
        """Keep the gradient that arrives at a loss: a scaler's factor over the number of accumulated batches."""
        self._begin_backward()
        if is_measured():
            before, value = self._scales.get(watched), gradient.detach().reshape(())
            self._scales[watched] = _Scale(value if before is None else before.value + value, self.accumulated)

    def _keep_batch(self, waiting: list[Batch], _gradient: Tensor) -> None:
        self._begin_backward()
        # Taken out, because the owner may keep the logits and with them this hook, or back-propagate them again.
        if waiting and len(self.batches) < _MOST_WAITING:
            self.batches.append(waiting.pop())

    def _begin_backward(self) -> None:
        number = torch._C._current_graph_task_id()  # noqa: SLF001
        if number != self._backward:
            self._backward = number
            keeps = self._norms or not self.is_empty  # otherwise there is nothing to forget
            if keeps and self.accumulated and self._are_cleared():
                self.forget()  # the owner cleared the gradients of batches without a step
            # A pass that gave parameters nothing, as for a penalty on gradients, has no share in their gradients.
            self._scales = {key: scale for key, scale in self._scales.items() if scale.accumulated < self.accumulated}

    def _are_cleared(self) -> bool:
        """Return whether all gradients that had reached parameters are gone or set to 0; this may wait for a device."""
        latest = None if self._latest is None else self._latest.grad
        if latest is not None and _writes(latest) == self._version:
            return False  # nobody has written to it since, so no device has to answer
        gradients = (parameter.grad for parameter in self._trained() if parameter.grad is not None)
        return not any(bool(_entries(gradient).any()) for gradient in gradients)

    def keep_norm(self, name: str, parameter: Tensor) -> None:
        """Count and keep the norm of a parameter's gradient."""
        self.accumulated += 1
        if parameter.grad is not None:
            self._latest, self._version = parameter, _writes(parameter.grad)
            self._norms[name] = torch.linalg.vector_norm(_entries(parameter.grad))

    def set_norm(self, name: str, norm: Tensor) -> None:
        """Replace the norm of a parameter's gradient."""
        self._norms[name] = norm

    def scale(self) -> float:
        """Return the factor on the gradients, by which their norms are divided; NaN if it is not finite."""
        scale = abs(float(sum(scale.value for scale in self._scales.values()))) or 1.0 if self._scales else 1.0
        return scale if isfinite(scale) else nan

    def norms(self) -> dict[str, float]:
        """Return the norms of gradients by parameter."""
        measured = torch.stack(list(self._norms.values())).tolist() if self._norms else []
        return dict(zip(self._norms, measured, strict=True))

    def forget(self) -> None:
        """Drop what was kept: the optimiser stepped, or the owner cleared the gradients."""
        self.batches.clear()
        self._norms.clear()
        self._scales.clear()
        self._latest = None
        self.accumulated = 0


def _entries(gradient: Tensor) -> Tensor:
    """Return the entries of a gradient; of a sparse one those that may differ from 0."""
    return gradient.coalesce().values() if gradient.is_sparse else gradient


def _writes(tensor: Tensor) -> int:
    """Return how often autograd has seen a tensor written to in place."""
    return tensor._version  # noqa: SLF001
