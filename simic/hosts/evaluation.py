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
from simic.hosts.growth import Growth
from simic.hosts.weights import HostWeights

__all__ = ["EvaluationSet", "Measurement", "evaluate"]

_SMALL = 1e-6
"""Keeps the logarithm of a silent layer finite."""


class EvaluationSet(NamedTuple):
    """One part's samples of N hosts, padded with zero rows to a multiple of 32."""

    inputs: Tensor
    """[N, B, 34]"""
    labels: Tensor
    """int64 [N, B]"""
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
        for slot, bed in enumerate(growth.beds):
            if slot:
                unit = torch.bmm(x, paths.per_row(weights.down[slot - 1], slot)).relu_()
                x = torch.baddbmm(x, unit, paths.per_row(weights.up[slot - 1], slot))
                gain = data.gains[slot - 1]
                if gain is not None:
                    x.mul_(paths.per_row(gain, slot))
            spread[:, slot] = _spread(x[:hosts], data.valid)
            if len(paths.starts[slot]):
                x = torch.cat([x, x.index_select(0, paths.starts[slot])])
            if bed is not None:
                h, change = bed.apply(x, [None] * len(bed.groups), in_training=False)
                ratio = _ratio(change, h, data.valid)
                is_host = bed.target.numpy() < hosts
                risk[bed.target.numpy()[is_host], slot] = ratio[is_host]
        logits = torch.bmm(paths.per_row(weights.head, SLOTS), x.transpose(1, 2))
        spread[:, -1] = _spread(logits[:hosts].transpose(1, 2), data.valid)
        loss, accuracy = _score(logits, paths.per_row(data.labels, SLOTS), data.valid)
    without = np.full((hosts, SLOTS), np.nan)
    for slot, start in enumerate(paths.starts):
        without[start.numpy(), slot] = accuracy[paths.counts[slot] : paths.counts[slot + 1]]
    return Measurement(loss[:hosts], accuracy[:hosts], without, spread, risk)


def _score(logits: Tensor, labels: Tensor, valid: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Mean loss and accuracy per row of logits [R, 10, B]; a tie for the largest logit is a miss."""
    index = labels.unsqueeze(1)
    likelihood = logits.log_softmax(dim=1).gather(1, index)[:, 0, :valid]
    others = logits.scatter(1, index, -torch.inf).amax(dim=1)
    hits = (logits.gather(1, index)[:, 0] > others)[:, :valid]
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
