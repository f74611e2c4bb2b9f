"""Validation of all hosts, fused with leave-one-out counterfactuals.

Rows share every layer in front of the slot at which they differ; only hosts with an active seed branch at all.
Nothing here changes a host. Shapes: N hosts, R rows, B samples (padded), D width, S slots, L layers.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from simic.hosts.anatomy import LAYERS, SLOTS
from simic.hosts.growth import Growth, Paths
from simic.hosts.weights import HostWeights

__all__ = ["EvaluationSet", "Measurement", "evaluate"]

_SMALL = 1e-6
"""Keeps the logarithm of a silent layer finite."""


class EvaluationSet(NamedTuple):
    """One part's samples of N hosts, padded with zero rows to a multiple of 32."""

    inputs: Tensor
    """[N, B, 34]"""
    labels: Tensor
    """int64 [N, valid]"""
    gains: tuple[Tensor | None, ...]
    """Per block: [N, B, 1], or None where no host has one."""
    floor: Tensor
    """[N, 1, 1]"""
    valid: int
    """Samples that count."""


class Measurement(NamedTuple):
    """What a pass over an evaluation set shows."""

    loss: NDArray[np.float64]
    """[N]"""
    accuracy: NDArray[np.float64]
    """[N]"""
    accuracy_without: NDArray[np.float64]
    """[N, S]: with that slot's seed off; NaN where there is none to switch off."""
    spread: NDArray[np.float64]
    """[N, L]: standard deviation over samples of ln |layer output|, in front of the slot."""
    risk: NDArray[np.float64]
    """[N, S]: |alpha delta| / |h|, at most 1; NaN where nothing is added."""


def evaluate(weights: HostWeights, growth: Growth, data: EvaluationSet) -> Measurement:
    """Loss and accuracy of every row in one pass; ``growth`` was gathered for evaluation."""
    hosts, paths = len(weights.stem), growth.paths
    spread = np.empty((hosts, LAYERS))
    risk = np.full((hosts, SLOTS), np.nan)
    with torch.no_grad():
        x = torch.maximum(torch.bmm(data.inputs, weights.stem), data.floor)
        for slot in range(SLOTS):
            if slot:
                rows = paths.hosts[: paths.counts[slot]]
                unit = torch.bmm(x, _per_row(weights.down[slot - 1], paths, rows)).relu_()
                x = torch.baddbmm(x, unit, _per_row(weights.up[slot - 1], paths, rows))
                gain = data.gains[slot - 1]
                if gain is not None:
                    x.mul_(_per_row(gain, paths, rows))
            spread[:, slot] = _spread(x[:hosts], data.valid)
            if paths.counts[slot + 1] > paths.counts[slot]:
                x = torch.cat([x, x.index_select(0, paths.starts[slot])])
            for group in growth.groups[slot]:
                h, change = group.apply(x, None, in_training=False)
                seeds = len(group.hosts)
                risk[group.hosts.numpy(), slot] = _ratio(change[:seeds], h[:seeds], data.valid)
        logits = torch.bmm(x, _per_row(weights.head, paths, paths.hosts))
        spread[:, -1] = _spread(logits[:hosts], data.valid)
        loss, accuracy = _score(logits[:, : data.valid], _per_row(data.labels, paths, paths.hosts))
    without = np.full((hosts, SLOTS), np.nan)
    for slot, start in enumerate(paths.starts):
        without[start.numpy(), slot] = accuracy[paths.counts[slot] : paths.counts[slot + 1]]
    return Measurement(loss[:hosts], accuracy[:hosts], without, spread, risk)


def _per_row(values: Tensor, paths: Paths, rows: Tensor) -> Tensor:
    return values if len(rows) == paths.counts[0] else values.index_select(0, rows)


def _score(logits: Tensor, labels: Tensor) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Mean loss and accuracy per row of logits [R, B, 10]."""
    likelihood = logits.log_softmax(dim=2).gather(2, labels.unsqueeze(2)).squeeze(2)
    hits = logits.argmax(dim=2) == labels
    return -likelihood.numpy().mean(axis=1, dtype=np.float64), hits.numpy().mean(axis=1, dtype=np.float64)


def _spread(x: Tensor, valid: int) -> NDArray[np.float64]:
    """Deviation over samples of ln |x|, x [N, B, D]."""
    sizes = torch.linalg.vector_norm(x, dim=2).add_(_SMALL).log_()[:, :valid].numpy().astype(np.float64)
    return np.asarray(sizes.std(axis=1))


def _ratio(change: Tensor, h: Tensor, valid: int) -> NDArray[np.float64]:
    """|change| / |h| per seed over all its samples, at most 1; [n, B, D] each."""
    above, below = (
        np.sqrt(np.square(torch.linalg.vector_norm(x, dim=2)[:, :valid].numpy().astype(np.float64)).sum(axis=1))
        for x in (change, h)
    )
    ratio: NDArray[np.float64] = np.minimum(above / np.maximum(below, _SMALL), 1.0)
    return ratio
