"""Validation of all hosts, fused with leave-one-out counterfactuals.

Rows share every layer before the slot at which they differ, and only hosts with an active seed get extra rows.
No function changes a host. Shapes: N hosts, R rows, B samples (padded), D features, S slots, L layers, C classes.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from simic.hosts.batched.conv import product
from simic.hosts.batched.seeds import PackedSeeds, RowLayout
from simic.hosts.batched.trunk import Trunk, per_row, scaled
from simic.hosts.batched.weights import HostWeights
from simic.hosts.interfaces import Measurement

__all__ = [
    "MOST_ROWS",
    "SMALL",
    "VECTOR",
    "EvaluationSet",
    "dimension_of",
    "evaluate",
    "hits_of",
    "largest_share",
    "measure_logits",
    "ratio_of",
    "rows_of",
    "spread_of",
]

SMALL = 1e-6
"""Added to norms, so that the logarithm of a zero output is finite."""
MOST_ROWS = 512
"""Most samples from which the dimension of an output is measured, so that it costs no more on large sets."""
VECTOR = 32
"""Evaluation sets and matrices are padded to a multiple of this per host, see ``sizes``."""
_GOLDEN = (5**0.5 - 1) / 2
"""Multiples of this, less their whole part, are spread evenly over [0, 1) (Weyl 1916)."""


class EvaluationSet(NamedTuple):
    """Samples of N hosts in one split, padded with zero rows to a multiple of 32."""

    inputs: Tensor
    """[N, B, ...]"""
    labels: Tensor
    """int64 [N, B]"""
    gains: tuple[Tensor | None, ...]
    """Per block: [N, B, 1], or None where no host has one."""
    valid: int
    """Number of samples before the padding."""


class LayerMeasurements(NamedTuple):
    """What is measured of layers and slots while samples pass; as in ``Measurement``."""

    spread: NDArray[np.float64]
    dimension: NDArray[np.float64]
    risk: NDArray[np.float64]


def evaluate(trunk: Trunk, weights: HostWeights, packed: PackedSeeds, data: EvaluationSet) -> Measurement:
    """Measure all hosts and their leave-one-out rows in one pass; ``packed`` is packed for evaluation."""
    layout, slots = packed.layout, len(packed.by_slot)
    hosts = layout.counts[0]
    spread, dimension = np.empty((2, hosts, len(trunk.topology.kinds)))
    risk = np.full((hosts, slots), np.nan)
    with torch.no_grad():
        parts = per_row(trunk, weights, layout)
        x = trunk.stem(parts, data.inputs)
        for slot, slot_seeds in enumerate(packed.by_slot):
            if slot:
                rows = layout.allocate(x, slot)
                scaled(trunk.block(slot - 1, parts, x, rows[: len(x)]), data.gains[slot - 1], layout, slot)
                x = rows
            spread[:, slot] = spread_of(x[:hosts], data.valid)
            dimension[:, slot] = dimension_of(rows_of(x[:hosts, : data.valid])).numpy()
            x = layout.branch(x, slot)
            if slot_seeds is not None:
                h, change = slot_seeds.apply(x, [None] * len(slot_seeds.groups), in_training=False)
                ratio = ratio_of(change, h, data.valid)
                is_host = slot_seeds.target.numpy() < hosts
                risk[slot_seeds.target.numpy()[is_host], slot] = ratio[is_host]
        logits = trunk.logits(parts, x)
        outputs = logits[:hosts].transpose(1, 2)
        spread[:, -1] = spread_of(outputs, data.valid)
        dimension[:, -1] = dimension_of(rows_of(outputs[:, : data.valid])).numpy()
        layers = LayerMeasurements(spread, dimension, risk)
        return measure_logits(logits, layout.per_row(data.labels, slots), data.valid, layout, layers)


def measure_logits(
    logits: Tensor,
    labels: Tensor,
    valid: int,
    layout: RowLayout,
    layers: LayerMeasurements,
) -> Measurement:
    """Score the rows' logits [R, C, B] against labels [R, B]; a tie for the largest logit is a miss."""
    hosts, slots = layout.counts[0], len(layout.starts)
    index = labels.unsqueeze(1)
    likelihood = logits[:hosts].log_softmax(dim=1).gather(1, index[:hosts])[:, 0, :valid]
    hits = hits_of(logits, labels)[:, :valid].numpy()
    accuracy = hits.mean(axis=1, dtype=np.float64)
    without, error = np.full((2, hosts, slots), np.nan)
    for slot, start in enumerate(layout.starts):
        members, rows = start.numpy(), slice(layout.counts[slot], layout.counts[slot + 1])
        without[members, slot] = accuracy[rows]
        error[members, slot] = (hits[members].astype(np.int8) - hits[rows]).std(axis=1) / np.sqrt(valid)
    return Measurement(
        loss=-likelihood.numpy().mean(axis=1, dtype=np.float64),
        accuracy=accuracy[:hosts],
        accuracy_without=without,
        error_without=error,
        **layers._asdict(),
        largest_share=largest_share(logits[:hosts, :, :valid]).numpy(),
    )


def hits_of(logits: Tensor, labels: Tensor) -> Tensor:
    """Return bool [R, B]: the label's logit is the largest, from logits [R, C, B]; a tie is a miss."""
    index = labels.unsqueeze(1)
    others = logits.scatter(1, index, -torch.inf).amax(dim=1)
    return logits.gather(1, index)[:, 0] > others


def largest_share(logits: Tensor) -> Tensor:
    """Return float64 [N]: the share of samples in the class predicted most often, ties included."""
    is_largest = logits == logits.amax(dim=1, keepdim=True)
    return is_largest.sum(dim=2).amax(dim=1).double() / float(logits.shape[2])


def spread_of(x: Tensor, valid: int) -> NDArray[np.float64]:
    """Return the standard deviation over samples of ln |x|, for x [N, B, *space, D]."""
    flat = x if x.dim() == 3 else x.flatten(2)
    sizes = torch.linalg.vector_norm(flat, dim=2).add_(SMALL).log_()[:, :valid].numpy().astype(np.float64)
    return np.asarray(sizes.std(axis=1))


def rows_of(x: Tensor, first: int = 0, total: int | None = None) -> Tensor:
    """Return the outputs [N, m, D] from which a dimension is measured, of the samples in x [N, B, *space, D].

    They are those of at most ``MOST_ROWS`` samples, evenly spaced among all ``total``, and of one position for each, so
    that they are of different samples. The first sample of ``x`` has the number ``first``.
    """
    count = x.shape[1] if total is None else total
    stride = -(-count // MOST_ROWS)
    if x.dim() == 3 and stride == 1:
        return x
    numbers = torch.arange(first, first + x.shape[1], device=x.device)
    numbers = numbers[-first % stride :: stride]
    flat = x.flatten(2, -2) if x.dim() > 3 else x.unsqueeze(2)
    places = ((numbers // stride).float() * _GOLDEN % 1.0 * flat.shape[2]).long()
    return flat[:, numbers - first, places]


def dimension_of(rows: Tensor) -> Tensor:
    """Return the participation ratio float64 [N] of outputs [N, m, D]: (sum of eigenvalues)^2 / sum of their squares.

    The eigenvalues are those of the covariance. Of the matrices of D features and of m outputs, which share all of them
    that are not 0, the smaller one is made.
    """
    hosts, count, width = rows.shape
    # The rounding of a product depends on where its matrices lie in memory, so all of them begin at whole vectors.
    centred = rows.new_zeros(hosts, -(-count // VECTOR) * VECTOR, -(-width // VECTOR) * VECTOR)
    # Less the first row, so that a constant leaves nothing and a large one does not hide what varies.
    torch.sub(rows, rows[:, :1], out=centred[:, :count, :width])
    weights = rows.new_zeros(hosts, 1, centred.shape[1])
    weights[:, :, :count] = 1.0 / count
    centred[:, :count] -= product(weights, centred)
    turned = centred.transpose(1, 2)
    products = product(turned, centred) if width <= count else product(centred, turned)
    products = products.double()
    trace = products.diagonal(dim1=1, dim2=2).sum(dim=1)
    return torch.where(trace == 0.0, 0.0, trace.square() / products.square().sum(dim=(1, 2)))


def ratio_of(change: Tensor, h: Tensor, valid: int) -> NDArray[np.float64]:
    """Return |change| / |h| per seed over its samples, at most 1, from arrays [n, B, *space, D].

    A state of norm 0 counts as ``SMALL``; a norm that overflows float32 gives NaN.
    """
    above, below = (
        np.sqrt(
            np.square(torch.linalg.vector_norm(x.flatten(2), dim=2)[:, :valid].numpy().astype(np.float64)).sum(axis=1)
        )
        for x in (change, h)
    )
    ratio: NDArray[np.float64] = np.minimum(above / np.maximum(below, SMALL), 1.0)
    return ratio
