"""What an epoch in a training loop of somebody else adds up to. Shapes: S slots, L layers, B samples, C classes."""

from __future__ import annotations

import math

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from simic.hosts.custom.tasks import Kind, Task

__all__ = ["EpochSums"]

_HELD_MOST = 2**20
"""Logits that wait to be scored; one call for many small batches takes a fraction of the time of one for each."""


class EpochSums:
    """Sums over the samples and steps of an epoch."""

    def __init__(self, task: Task, slots: int, layers: int) -> None:
        self._task = task
        self._totals = torch.zeros(3, dtype=torch.float64, device="cpu")
        """Log-likelihoods, hits, and how many samples or positions count."""
        self._held: list[tuple[Tensor, Tensor]] = []
        self._held_size = 0
        self.samples = 0
        self.steps = 0
        self.measured = 0
        self.layers = np.zeros(layers)
        self._seed_norm, self._seed_left_out, self.seed_good = np.zeros((3, slots))

    def add(self, logits: Tensor, labels: Tensor) -> None:
        """Count the samples of a batch; its owner may change both tensors afterwards."""
        logits = logits.detach()
        self.samples += len(labels)
        # Batches of positions may differ in length, so only classes of samples can wait.
        if self._task.kind is not Kind.CLASS or logits.numel() > _HELD_MOST:
            self._score(logits.float(), labels)
            return
        if self._held_size + logits.numel() > _HELD_MOST:
            self._score_held()
        self._held.append((logits.to(torch.float32, copy=True), labels.clone()))
        self._held_size += logits.numel()

    def count_seed(self, slot: int, norm: float) -> None:
        """Count the gradient norm of a seed in a step; one that is not finite is part of no mean."""
        is_finite = math.isfinite(norm)
        self._seed_norm[slot] += norm if is_finite else 0.0
        self._seed_left_out[slot] += not is_finite
        self.seed_good[slot] += is_finite and norm > 0

    def layer_norms(self) -> NDArray[np.float64]:
        """Return the mean gradient norms [L] of the steps in which all were finite; NaN if there was none."""
        return self.layers / self.measured if self.measured else np.full_like(self.layers, np.nan)

    def seed_norms(self) -> NDArray[np.float64]:
        """Return the mean of the finite gradient norms [S] of each seed; NaN if a seed had none."""
        steps = self.steps - self._seed_left_out
        return np.where(steps > 0, self._seed_norm / np.maximum(steps, 1), np.nan)

    @property
    def counted(self) -> int:
        """Return how many samples or positions count."""
        self._score_held()
        return int(self._totals[2])

    def means(self) -> tuple[float, float]:
        """Return loss and accuracy, means over all samples or positions that count; NaN if none does."""
        self._score_held()
        likelihood, hits, count = self._totals.tolist()
        return (-likelihood / count, hits / count) if count else (math.nan, math.nan)

    def _score_held(self) -> None:
        if self._held:
            logits, labels = (torch.cat(parts) for parts in zip(*self._held, strict=True))
            self._score(logits, labels)
            # Afterwards, so that an error in between loses nothing.
            self._held.clear()
            self._held_size = 0

    def _score(self, logits: Tensor, labels: Tensor) -> None:
        self._totals = self._totals.to(logits.device) + self._task.totals(logits, labels)
