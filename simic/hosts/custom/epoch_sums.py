"""What an epoch in a training loop of somebody else adds up to. Shapes: S slots, L layers, B samples, C classes."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from simic.hosts.custom.tasks import Kind, Task

__all__ = ["EpochSums"]

_HELD_MOST = 2**20
"""Logits that wait to be scored; one call for many small batches takes a fraction of the time of one for each."""


class EpochSums:
    """Sums over the samples and steps of an epoch."""

    def __init__(self, task: Task, slots: int, layers: int) -> None:
        self._task = task
        self._loss = torch.zeros((), dtype=torch.float64)
        self._hits = torch.zeros((), dtype=torch.float64)
        self._held: list[tuple[Tensor, Tensor]] = []
        self._held_size = 0
        self.samples = 0
        self.steps = 0
        self.measured = 0
        self.layers = np.zeros(layers)
        self.seed_norm, self.seed_good = np.zeros((2, slots))

    def add(self, logits: Tensor, labels: Tensor) -> None:
        """Count the samples of a batch; its owner may change both tensors afterwards."""
        logits = logits.detach()
        self.samples += len(labels)
        # The share of a position depends on the others in its batch, so only classes of samples can wait.
        if self._task.kind is not Kind.CLASS or logits.numel() > _HELD_MOST:
            self._score(logits.float(), labels)
            return
        if self._held_size + logits.numel() > _HELD_MOST:
            self._score_held()
        self._held.append((logits.to(torch.float32, copy=True), labels.clone()))
        self._held_size += logits.numel()

    def means(self) -> tuple[float, float]:
        """Return loss and accuracy, means over all samples."""
        self._score_held()
        return float(self._loss) / self.samples, float(self._hits) / self.samples

    def _score_held(self) -> None:
        if self._held:
            logits, labels = (torch.cat(parts) for parts in zip(*self._held, strict=True))
            self._held.clear()
            self._held_size = 0
            self._score(logits, labels)

    def _score(self, logits: Tensor, labels: Tensor) -> None:
        likelihood, hits = self._task.score(logits, labels)
        self._loss = self._loss.to(logits.device) - likelihood.sum()
        self._hits = self._hits.to(logits.device) + hits.sum()
