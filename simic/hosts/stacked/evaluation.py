"""Validation of all hosts, fused with leave-one-out counterfactuals.

Rows share every layer in front of the slot at which they differ; only hosts with an active seed branch at all.
Nothing here changes a host. Shapes: N hosts, R rows, B samples (padded), D features, S slots, L layers, C classes.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from simic.hosts.protocols import Measurement
from simic.hosts.stacked.growth import Growth, Paths
from simic.hosts.stacked.trunk import Trunk, per_row, scaled
from simic.hosts.stacked.weights import HostWeights

__all__ = ["SMALL", "EvaluationSet", "evaluate", "hits_of", "largest_share", "measure_logits", "ratio_of", "spread_of"]

SMALL = 1e-6
"""Keeps the logarithm of a silent layer finite."""


class EvaluationSet(NamedTuple):
    """One part's samples of N hosts, padded with zero rows to a multiple of 32."""

    inputs: Tensor
    """[N, B, ...]"""
    labels: Tensor
    """int64 [N, B]"""
    gains: tuple[Tensor | None, ...]
    """Per block: [N, B, 1], or None where no host has one."""
    valid: int
    """Samples that count."""


def evaluate(trunk: Trunk, weights: HostWeights, growth: Growth, data: EvaluationSet) -> Measurement:
    """Loss and accuracy of every row in one pass; ``growth`` was gathered for evaluation."""
    paths, slots = growth.paths, len(growth.beds)
    hosts = paths.counts[0]
    spread = np.empty((hosts, len(trunk.anatomy.kinds)))
    risk = np.full((hosts, slots), np.nan)
    with torch.no_grad():
        parts = per_row(trunk, weights, paths)
        x = trunk.stem(parts, data.inputs)
        for slot, bed in enumerate(growth.beds):
            if slot:
                rows = paths.room(x, slot)
                scaled(trunk.block(slot - 1, parts, x, rows[: len(x)]), data.gains[slot - 1], paths, slot)
                x = rows
            spread[:, slot] = spread_of(x[:hosts], data.valid)
            x = paths.branch(x, slot)
            if bed is not None:
                h, change = bed.apply(x, [None] * len(bed.groups), in_training=False)
                ratio = ratio_of(change, h, data.valid)
                is_host = bed.target.numpy() < hosts
                risk[bed.target.numpy()[is_host], slot] = ratio[is_host]
        logits = trunk.logits(parts, x)
        spread[:, -1] = spread_of(logits[:hosts].transpose(1, 2), data.valid)
        return measure_logits(logits, paths.per_row(data.labels, slots), data.valid, paths, spread, risk)


def measure_logits(
    logits: Tensor, labels: Tensor, valid: int, paths: Paths, spread: NDArray[np.float64], risk: NDArray[np.float64]
) -> Measurement:
    """Score the rows' logits [R, C, B] against labels [R, B]; a tie for the largest logit is a miss."""
    hosts, slots = paths.counts[0], len(paths.starts)
    index = labels.unsqueeze(1)
    likelihood = logits[:hosts].log_softmax(dim=1).gather(1, index[:hosts])[:, 0, :valid]
    hits = hits_of(logits, labels)[:, :valid].numpy()
    accuracy = hits.mean(axis=1, dtype=np.float64)
    without, error = np.full((2, hosts, slots), np.nan)
    for slot, start in enumerate(paths.starts):
        members, rows = start.numpy(), slice(paths.counts[slot], paths.counts[slot + 1])
        without[members, slot] = accuracy[rows]
        error[members, slot] = (hits[members].astype(np.int8) - hits[rows]).std(axis=1) / np.sqrt(valid)
    return Measurement(
        loss=-likelihood.numpy().mean(axis=1, dtype=np.float64),
        accuracy=accuracy[:hosts],
        accuracy_without=without,
        error_without=error,
        spread=spread,
        risk=risk,
        largest_share=largest_share(logits[:hosts, :, :valid]).numpy(),
    )


def hits_of(logits: Tensor, labels: Tensor) -> Tensor:
    """Whether the label's logit is the largest, bool [R, B] from [R, C, B]; a tie is a miss."""
    index = labels.unsqueeze(1)
    others = logits.scatter(1, index, -torch.inf).amax(dim=1)
    return logits.gather(1, index)[:, 0] > others


def largest_share(logits: Tensor) -> Tensor:
    """Share of samples for which the commonest class's logit is the largest, ties included; float64 [N]."""
    is_largest = logits == logits.amax(dim=1, keepdim=True)
    return is_largest.sum(dim=2).amax(dim=1).double() / float(logits.shape[2])


def spread_of(x: Tensor, valid: int) -> NDArray[np.float64]:
    """Deviation over samples of ln |x|, x [N, B, *space, D]."""
    flat = x if x.dim() == 3 else x.flatten(2)
    sizes = torch.linalg.vector_norm(flat, dim=2).add_(SMALL).log_()[:, :valid].numpy().astype(np.float64)
    return np.asarray(sizes.std(axis=1))


def ratio_of(change: Tensor, h: Tensor, valid: int) -> NDArray[np.float64]:
    """|change| / |h| per seed over all its samples, at most 1; [n, B, *space, D] each.

    A silent state counts as ``SMALL``; one whose norm overflows float32 has no ratio: NaN.
    """
    above, below = (
        np.sqrt(
            np.square(torch.linalg.vector_norm(x.flatten(2), dim=2)[:, :valid].numpy().astype(np.float64)).sum(axis=1)
        )
        for x in (change, h)
    )
    ratio: NDArray[np.float64] = np.minimum(above / np.maximum(below, SMALL), 1.0)
    return ratio
