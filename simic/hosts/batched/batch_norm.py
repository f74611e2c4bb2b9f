"""Batch normalisation of many hosts at once (Ioffe and Szegedy 2015), with the defaults of ``torch.nn.BatchNorm1d``.

In training every row is normalised by the mean and the variance of its own batch. In evaluation it is normalised by the
running ones of its host, which lag behind weights that move quickly. Extra rows never move the running ones.
Shapes: R rows, M samples (times positions), D features.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from simic.hosts.batched.conv import product
from simic.hosts.batched.trunk import TrunkPart

__all__ = ["NORM_PARTS", "Normalised", "evaluated", "norm_parts", "normalised", "pull_norm", "with_gradients"]

NORM_PARTS = 4
"""Parts of a normalisation: scale, shift, running mean, running variance."""
_EPSILON = 1e-5


def norm_parts(features: int, layer: int, depth: int) -> tuple[TrunkPart, ...]:
    """Return the parts of a normalisation of ``features`` features."""
    scale, shift = (TrunkPart((features,), 0.0, layer, depth, start=start) for start in (1.0, 0.0))
    mean, variance = (part._replace(is_statistic=True) for part in (shift, scale))
    return scale, shift, mean, variance


class Normalised(NamedTuple):
    """A normalised batch and what its backward pass needs."""

    output: Tensor
    """[R, M, D]"""
    standard: Tensor
    """[R, M, D]: before scale and shift."""
    inverse: Tensor
    """[R, 1, D]: one over the standard deviation."""
    mean: Tensor
    """[R, D]"""
    variance: Tensor
    """[R, D], unbiased, as it enters the running variance."""


def normalised(x: Tensor, parts: Sequence[Tensor]) -> Normalised:
    """Normalise x [R, M, D] by its own mean and variance; ``parts`` are those of ``norm_parts``, [R, D] each."""
    scale, shift, _, _ = parts
    count = x.shape[1]
    # Means are products, because a reduction could round differently with the number of rows.
    weights = x.new_full((len(x), 1, count), 1.0 / count)
    mean = product(weights, x)
    centred = x - mean
    variance = product(weights, centred * centred)
    inverse = (variance + _EPSILON).sqrt().reciprocal()
    standard = centred * inverse
    output = standard * scale[:, None] + shift[:, None]
    return Normalised(output, standard, inverse, mean[:, 0], variance[:, 0] * (count / (count - 1)))


def evaluated(x: Tensor, parts: Sequence[Tensor]) -> Tensor:
    """Return x [R, M, D] normalised by the running mean and variance."""
    scale, shift, mean, variance = (part[:, None] for part in parts)
    return (x - mean) * (scale / (variance + _EPSILON).sqrt()) + shift


def pull_norm(g: Tensor, found: Normalised, parts: Sequence[Tensor], hosts: int, out: Sequence[Tensor]) -> Tensor:
    """Return the gradient of the input from that of the output ``g`` [R, M, D].

    Write the gradients of the parts, from the first ``hosts`` rows, to ``out``. That of a running value is its
    distance to the value of the batch.
    """
    scale, _, mean, variance = parts
    ones = g.new_ones(len(g), 1, g.shape[1])
    of_scale, of_shift = product(ones, g * found.standard), product(ones, g)
    for target, values in zip(out[:2], (of_scale, of_shift), strict=True):
        target.copy_(values[:hosts, 0])
    torch.sub(mean[:hosts], found.mean[:hosts], out=out[2])
    torch.sub(variance[:hosts], found.variance[:hosts], out=out[3])
    count = g.shape[1]
    return (g - (of_shift + found.standard * of_scale) * (1.0 / count)) * (found.inverse * scale[:, None])


def with_gradients(x: Tensor, parts: Sequence[Tensor]) -> Tensor:
    """Return ``normalised`` with gradients by automatic differentiation, equal to those of ``pull_norm``."""
    normalisation = normalised(x, parts)
    _, _, mean, variance = parts
    result: Tensor = _Following.apply(  # type: ignore[no-untyped-call]
        normalisation.output, mean, normalisation.mean.detach(), variance, normalisation.variance.detach()
    )
    return result


class _Following(torch.autograd.Function):
    """The identity; the gradient of a running value is its distance to the value of the batch."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, *values: Tensor) -> Tensor:
        ctx.save_for_backward(*values)
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        mean, of_batch, variance, of_samples = ctx.saved_tensors
        return g, mean - of_batch, None, variance - of_samples, None
