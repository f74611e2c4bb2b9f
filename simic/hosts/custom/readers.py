"""What reads the output of a layer, found from dry runs: the places at which widening seeds add.

Shapes: B samples.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from math import prod
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from simic.hosts.interfaces import Reader, Window

__all__ = [
    "Attachment",
    "LeafRun",
    "Shape",
    "leaf_names",
    "leaf_run",
    "output_reader",
    "reader_of",
    "sample_shape",
    "stable_runs",
]

Shape = tuple[int, ...]


class LeafRun(NamedTuple):
    """One call of a convolution or linear map in a dry run."""

    name: str
    shapes: tuple[Shape, ...]
    """Shapes of one sample's input and output; empty if one of them is not a float32 tensor [B, ...]."""
    output: Any


class Attachment(NamedTuple):
    """The submodule to whose output a widening seed adds for one reader."""

    name: str
    axis: int
    """Axis of the features of its output; samples are axis 0."""
    reader: Reader


def leaf_names(module: nn.Module) -> list[str]:
    """Return the names of the convolutions and linear maps of a module."""
    kinds = (nn.Linear, nn.Conv1d, nn.Conv2d)
    return [name for name, part in module.named_modules() if name and isinstance(part, kinds)]


def sample_shape(value: Any, count: int) -> Shape | None:
    """Return the shape of one sample of a float32 tensor [count, ...], or None for anything else."""
    is_good = isinstance(value, Tensor) and value.dtype == torch.float32 and value.dim() >= 2 and len(value) == count
    return tuple(value.shape[1:]) if is_good else None


def leaf_run(name: str, arguments: Sequence[Any], output: Any, count: int) -> LeafRun:
    """Return the record of a call on ``count`` samples."""
    read, given = sample_shape(arguments[0] if arguments else None, count), sample_shape(output, count)
    return LeafRun(name, () if read is None or given is None else (read, given), output)


def stable_runs(passes: Sequence[Sequence[LeafRun]]) -> list[LeafRun]:
    """Return the calls of the first pass by leaves that run once in it, with the same shapes in every pass."""
    seen = [{(run.name, run.shapes) for run in runs} for runs in passes]
    calls = Counter(run.name for run in passes[0])
    return [
        run
        for run in passes[0]
        if run.shapes and calls[run.name] == 1 and all((run.name, run.shapes) in runs for runs in seen)
    ]


def reader_of(
    module: nn.Module, layer: str, runs: Sequence[LeafRun], reads: Callable[[Tensor], bool], width: int, space: Shape
) -> Attachment | None:
    """Return where ``layer`` first reads a state [B, *space, width], before its normalisation and nonlinearity.

    That is its first leaf whose output depends on the state, as ``reads`` tells. None if none does, or if the leaf's
    geometry is not supported.
    """
    for run in runs:
        if (run.name == layer or run.name.startswith(f"{layer}.")) and reads(run.output):
            leaf, (read, given) = module.get_submodule(run.name), run.shapes
            if isinstance(leaf, (nn.Conv1d, nn.Conv2d)):
                return _convolution_reader(run.name, leaf, read)
            extent = given[:-1] or _extent(space, width, read[-1])
            return Attachment(run.name, len(given), Reader(given[-1], extent, is_flat=len(given) == 1))
    return None


def output_reader(name: str, shape: Shape, axis: int) -> Attachment:
    """Return the attachment to the output [B, *shape] of a layer without a leaf that reads: a map per position."""
    extent = shape[: axis - 1] + shape[axis:]
    return Attachment(name, axis, Reader(shape[axis - 1], extent, is_flat=not extent))


def _extent(space: Shape, width: int, inputs: int) -> Shape:
    """Return the extent of a state [*space, width] when it is pooled evenly to ``inputs`` numbers, else ``space``."""
    for factor in range(1, max(space, default=1) + 1):
        pooled = tuple(max(1, size // factor) for size in space)
        if width * prod(pooled) == inputs:
            return pooled
    return space


def _convolution_reader(name: str, leaf: nn.Conv1d | nn.Conv2d, read: Shape) -> Attachment | None:
    size, stride, dilation = leaf.kernel_size, leaf.stride, leaf.dilation
    if leaf.padding == "same":
        spans = [step * (length - 1) for length, step in zip(size, dilation, strict=True)]
        if any(span % 2 for span in spans):
            return None
        padding: Sequence[Any] = [span // 2 for span in spans]
    else:
        padding = [0] * len(size) if leaf.padding == "valid" else leaf.padding
    windows = tuple(Window(*axis) for axis in zip(size, stride, padding, dilation, strict=True))
    return Attachment(name, 1, Reader(leaf.out_channels, read[1:], windows))
