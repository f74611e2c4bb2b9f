"""Convolution of many hosts' maps at once, each with weights of its own, so that no host's bits depend on another's.

A row of a map is one vector of all its columns' features. Between such rows a 3x3 kernel is a band matrix, and three
neighbouring rows side by side meet it in one product per host: dense matrix work, where a grouped convolution rounds
differently with the number of groups, and gathering all nine neighbours of every position costs more than it saves.
Shapes: n hosts, B samples, Y rows, X columns, D features in, M features out.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

__all__ = ["KERNEL", "convolve"]

KERNEL = 3
"""Rows and columns a kernel spans."""
_CHUNK = 2**18
"""Floats of gathered rows worked on at a time; they should stay in the cache."""


def convolve(x: Tensor, weight: Tensor) -> Tensor:
    """3x3 convolution with zeros around the map: x [n, B, Y, X, D] and weight [n, 3, 3, D, M] give [n, B, Y, X, M]."""
    result: Tensor = _Convolution.apply(x, weight)  # type: ignore[no-untyped-call]
    return result


class _Convolution(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        n, samples, height, width, features = x.shape
        band = _band(weight, width)
        padded = x.new_empty(n, samples, height + 2, width * features)
        padded[:, :, 0], padded[:, :, -1] = 0.0, 0.0
        padded[:, :, 1:-1].copy_(x.reshape(n, samples, height, -1))
        ctx.save_for_backward(padded, band)
        ctx.shapes = x.shape, weight.shape
        out = x.new_empty(n, samples, height, width, weight.shape[4])
        rows = out.view(n, samples * height, -1)
        for hosts in _chunks(padded):
            torch.bmm(_rows(padded[hosts]), band[hosts], out=rows[hosts])
        return out

    @staticmethod
    def backward(ctx: Any, above: Tensor) -> tuple[Tensor, Tensor | None]:
        padded, band = ctx.saved_tensors
        shape, kernel = ctx.shapes
        n, samples, height, width, features = shape
        g = above.reshape(n, samples * height, -1)
        is_wanted = ctx.needs_input_grad[1]
        of_band, of_x = (
            torch.empty_like(band if is_wanted else band[:0]),
            above.new_empty(n, samples, height, width * features),
        )
        for hosts in _chunks(padded):
            if is_wanted:
                torch.bmm(_rows(padded[hosts]).transpose(1, 2), g[hosts], out=of_band[hosts])
            of_rows = torch.bmm(g[hosts], band[hosts].transpose(1, 2)).view(-1, samples, height, KERNEL, of_x.shape[3])
            mine = of_x[hosts]
            mine.copy_(of_rows[:, :, :, 1])
            mine[:, :, :-1].add_(of_rows[:, :, 1:, 0])
            mine[:, :, 1:].add_(of_rows[:, :, :-1, 2])
        return of_x.view(shape), _unband(of_band, kernel) if is_wanted else None


def _chunks(padded: Tensor) -> Iterator[slice]:
    """As many hosts at a time as a CPU's cache holds; elsewhere all of them at once."""
    is_cached = padded.device.type == "cpu"
    size = max(1, _CHUNK // (KERNEL * padded[0].numel())) if is_cached else len(padded)
    return (slice(start, start + size) for start in range(0, len(padded), size))


def _rows(padded: Tensor) -> Tensor:
    """Each row with its neighbours: [n, B, Y + 2, F] gives [n, B * Y, 3 * F]."""
    n, samples, height, width = padded.shape
    overlapping = padded.as_strided((n, samples, height - 2, KERNEL * width), (*padded.stride()[:3], 1))
    return overlapping.reshape(n, -1, KERNEL * width)


def _meeting(column: int, width: int) -> tuple[slice, slice]:
    """Columns that a kernel over ``column`` sees, and its taps that see them."""
    low, high = max(0, column - 1), min(width, column + 2)
    return slice(low, high), slice(low - column + 1, high - column + 1)


def _band(weight: Tensor, width: int) -> Tensor:
    """[n, 3 * X * D, X * M]"""
    n, _, _, features, outputs = weight.shape
    band = weight.new_zeros(n, KERNEL, width, features, width, outputs)
    for column in range(width):
        seen, taps = _meeting(column, width)
        band[:, :, seen, :, column].copy_(weight[:, :, taps])
    return band.view(n, KERNEL * width * features, width * outputs)


def _unband(of_band: Tensor, kernel: torch.Size) -> Tensor:
    """The gradient of the weights from that of their band matrix."""
    n, _, _, features, outputs = kernel
    width = of_band.shape[2] // outputs
    cells = of_band.view(n, KERNEL, width, features, width, outputs)
    of_weight = of_band.new_zeros(kernel)
    for column in range(width):
        seen, taps = _meeting(column, width)
        of_weight[:, :, taps].add_(cells[:, :, seen, :, column])
    return of_weight
