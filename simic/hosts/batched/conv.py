"""3x3 convolution of many hosts' maps at once, each with its own weights and with bits independent of the others.

Maps are stored by map row, then sample; each row is one vector of its columns' features. A kernel is three band
matrices, one per kernel row, applied to three overlapping views of the padded maps: dense products without a gather.
A grouped convolution is not used because its rounding depends on the number of groups.
Shapes: n hosts, B samples, Y rows, X columns, D features in, M features out.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

__all__ = [
    "KERNEL",
    "band_matrices",
    "by_sample",
    "convolve",
    "kernel_gradient",
    "meet",
    "pad",
    "product",
    "state_gradient",
]

KERNEL = 3
"""Rows and columns of a kernel."""


def convolve(x: Tensor, weight: Tensor) -> Tensor:
    """Convolve with zero padding: x [n, B, Y, X, D] and weight [n, 3, 3, D, M] give [n, B, Y, X, M]."""
    result: Tensor = _Convolution.apply(x, weight)  # type: ignore[no-untyped-call]
    return result


def product(left: Tensor, right: Tensor, onto: Tensor | None = None, out: Tensor | None = None) -> Tensor:
    """Return left @ right, added to ``onto`` and written to ``out`` if given; [n, i, k], [n, k, j] and [n, i, j].

    A batch of one is computed twice: libraries split a single matrix product between threads, which changes rounding.
    """
    if left.shape[0] == 1:  # not len, which would fix the number of samples in a traced graph
        left, right = left.expand(2, -1, -1), right.expand(2, -1, -1)
        single = product(left, right, None if onto is None else onto.expand(2, -1, -1))[:1]
        return single if out is None else out.copy_(single)
    if onto is None:
        return torch.bmm(left, right) if out is None else torch.bmm(left, right, out=out)
    return torch.baddbmm(onto, left, right) if out is None else torch.baddbmm(onto, left, right, out=out)


def pad(x: Tensor) -> Tensor:
    """Return maps [n, B, Y, X, D] by rows with a zero row above and below: [n, Y + 2, B, X * D]."""
    n, samples, height, width, features = x.shape
    padded = x.new_empty(n, height + 2, samples, width * features)
    padded[:, 0], padded[:, -1] = 0.0, 0.0
    padded[:, 1:-1].view(n, height, samples, width, features).copy_(x.transpose(1, 2))
    return padded


def by_sample(rows: Tensor, samples: int, width: int) -> Tensor:
    """Return [n, Y * B, X * M] as maps [n, B, Y, X, M]; a view."""
    return rows.view(len(rows), -1, samples, width, rows.shape[2] // width).transpose(1, 2)


def band_matrices(weight: Tensor, width: int) -> tuple[Tensor, ...]:
    """Return one matrix [n, X * D, X * M] per kernel row, which maps a row of ``width`` columns to an output row."""
    n, _, _, features, outputs = weight.shape
    bands = weight.new_zeros(n, KERNEL, width, features, width, outputs)
    for column in range(width):
        seen, taps = _meeting(column, width)
        bands[:, :, seen, :, column].copy_(weight[:, :, taps])
    return bands.view(n, KERNEL, width * features, width * outputs).unbind(1)


def meet(padded: Tensor, bands: Sequence[Tensor]) -> Tensor:
    """Apply band matrices to padded maps [n, Y + 2, B, X * D]; returns [n, Y * B, X * M]."""
    out = product(_shifted(padded, 0), bands[0])
    for tap, band in enumerate(bands[1:], 1):
        product(_shifted(padded, tap), band, out, out)
    return out


def state_gradient(above: Tensor, bands: Sequence[Tensor]) -> Tensor:
    """Return the gradient of the maps, [n, Y * B, X * D], from that of the output, padded [n, Y + 2, B, X * M]."""
    return meet(above, [band.transpose(1, 2) for band in reversed(bands)])


def kernel_gradient(padded: Tensor, above: Tensor, shape: torch.Size) -> Tensor:
    """Return the gradient of a kernel of this shape, from padded maps and the padded gradient of the output."""
    n, _, _, features, outputs = shape
    width = padded.shape[3] // features
    gradient = padded.new_zeros(shape)
    g = _shifted(above, 1)
    for tap in range(KERNEL):
        cells = product(_shifted(padded, tap).transpose(1, 2), g).view(n, width, features, width, outputs)
        for column in range(width):
            seen, taps = _meeting(column, width)
            gradient[:, tap, taps].add_(cells[:, seen, :, column])
    return gradient


class _Convolution(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        padded, bands = pad(x), band_matrices(weight, x.shape[3])
        ctx.save_for_backward(padded, *bands)
        ctx.kernel = weight.shape
        return by_sample(meet(padded, bands), x.shape[1], x.shape[3]).contiguous()

    @staticmethod
    def backward(ctx: Any, above: Tensor) -> tuple[Tensor, Tensor | None]:
        maps, *bands = ctx.saved_tensors
        padded = pad(above)
        of_x = by_sample(state_gradient(padded, bands), above.shape[1], above.shape[3])
        return of_x, kernel_gradient(maps, padded, ctx.kernel) if ctx.needs_input_grad[1] else None


def _shifted(padded: Tensor, tap: int) -> Tensor:
    """Return the map rows that one kernel row covers, [n, Y * B, F]; a view."""
    n, height, samples, width = padded.shape
    return padded[:, tap : tap + height - 2].view(n, (height - 2) * samples, width)


def _meeting(column: int, width: int) -> tuple[slice, slice]:
    """Return the columns that a kernel over ``column`` covers, and the taps that cover them."""
    low, high = max(0, column - 1), min(width, column + 2)
    return slice(low, high), slice(low - column + 1, high - column + 1)
