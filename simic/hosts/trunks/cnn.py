"""``cnn``: stem, slot 0, block 1, slot 1, block 2, slot 2, head, on 4x4 maps; block i is x + V relu(W * x).

Two 8x8 images are cut into patches of 2x2, as a convolution with stride 2 sees them. W is a 3x3 convolution to the
hidden channels, V mixes them at every position, and the head reads the whole map.
Shapes: N hosts, R rows, B samples, P features of a patch, D channels, M hidden channels.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from simic.contracts.state import LayerKind
from simic.hosts.protocols import Anatomy, HostRecipe, Pairs, Site
from simic.hosts.stacked.anatomy import BLOCKS, CLASSES, CONNECTS, HIDDEN, IMAGE, MONITORS, SLOTS
from simic.hosts.stacked.growth import Growth
from simic.hosts.stacked.maps import KERNEL, convolve
from simic.hosts.stacked.trunk import StepBatch, TrunkPart, differentiate
from simic.hosts.stacked.weights import HostWeights

__all__ = ["CHANNELS", "PATCH", "TRUNK", "CnnTrunk"]

PATCH = 2
"""Pixels of a patch's edge."""
CHANNELS = 12
"""D"""
_EDGE = IMAGE // PATCH
_FEATURES = 2 * PATCH * PATCH + 2
"""Pixels of a and of b, selector, and a constant one that carries the stem's bias."""
_HIDDEN = HIDDEN // 2
"""Hidden channels at most: two hidden units of a recipe make one."""
_AT_A_TIME = 8
"""Rows a pass without gradients works on at a time; more would make memory that the system hands out anew each time."""
_MAP = _EDGE * _EDGE * CHANNELS

_BLOCK_PARTS = tuple(
    part
    for block in range(BLOCKS)
    for part in (
        TrunkPart(
            (KERNEL, KERNEL, CHANNELS, _HIDDEN),
            float(np.sqrt(2.0 / (KERNEL * KERNEL * CHANNELS))),
            layer=1 + block,
            depth=1 + block,
            hidden_axis=3,
        ),
        TrunkPart((_HIDDEN, CHANNELS), float(0.5 / np.sqrt(_HIDDEN)), layer=1 + block, depth=1 + block, hidden_axis=0),
    )
)


class CnnTrunk:
    """See ``Trunk``. Masked hidden channels have zero kernels in W and zero rows in V, so their gradients are zero."""

    anatomy = Anatomy(
        kinds=(LayerKind.STEM, *[LayerKind.BLOCK] * BLOCKS, LayerKind.HEAD),
        widths=(*[CHANNELS] * (1 + BLOCKS), CLASSES),
        connects=CONNECTS,
        sites=(Site(CHANNELS, (_EDGE, _EDGE)),) * SLOTS,
        monitors=MONITORS,
        classes=CLASSES,
    )
    parts = (
        TrunkPart((_FEATURES, CHANNELS), float(1.0 / np.sqrt(_FEATURES)), layer=0, depth=0),
        *_BLOCK_PARTS,
        TrunkPart((CLASSES, _MAP), float(0.5 / np.sqrt(_MAP)), layer=1 + BLOCKS, depth=SLOTS),
    )

    def __init__(self, recipes: Sequence[HostRecipe]) -> None:
        is_linear = np.array([recipe.is_linear for recipe in recipes])
        units = np.array([recipe.hidden for recipe in recipes], dtype=np.int64)
        self.hidden: NDArray[np.int64] = (units + 1) // 2
        self._floor = torch.from_numpy(np.where(is_linear, -np.inf, 0.0).astype(np.float32))[:, None, None]
        self._passing = torch.from_numpy(is_linear.astype(np.float32))[:, None, None]

    @staticmethod
    def inputs(pairs: Pairs) -> NDArray[np.float32]:
        """See ``Trunk``: per patch, its pixels of image a and b, selector as -1 or 1, and a one; [n, 4, 4, 10]."""
        inputs = np.empty((len(pairs.image_a), _EDGE, _EDGE, _FEATURES), dtype=np.float32)
        pixels = PATCH * PATCH
        inputs[..., :pixels], inputs[..., pixels : 2 * pixels] = _patches(pairs.image_a), _patches(pairs.image_b)
        inputs[..., -2] = np.where(pairs.selector, 1.0, -1.0)[:, None, None]
        inputs[..., -1] = 1.0
        return inputs

    def stem(self, parts: Sequence[Tensor], inputs: Tensor) -> Tensor:
        """See ``Trunk``."""
        x: Tensor = _Rectify.apply(torch.bmm(inputs.flatten(1, 3), parts[0]), self._floor, self._passing)  # type: ignore[no-untyped-call]
        return x.view(*inputs.shape[:-1], CHANNELS)

    def block(self, index: int, parts: Sequence[Tensor], x: Tensor) -> Tensor:
        """See ``Trunk``."""
        kernel, matrix = parts[1 + 2 * index], parts[2 + 2 * index]
        if torch.is_grad_enabled():
            return torch.baddbmm(x.flatten(1, 3), _unit(x, kernel), matrix).view(x.shape)
        out = torch.empty_like(x)
        at_a_time = _AT_A_TIME if x.device.type == "cpu" else len(x)
        for some in (slice(start, start + at_a_time) for start in range(0, len(x), at_a_time)):
            unit = _unit(x[some], kernel[some])
            torch.baddbmm(x[some].flatten(1, 3), unit, matrix[some], out=out[some].flatten(1, 3))
        return out

    def logits(self, parts: Sequence[Tensor], x: Tensor) -> Tensor:
        """See ``Trunk``."""
        return torch.bmm(parts[-1], x.flatten(2).transpose(1, 2))

    def backpropagate(
        self, parts: Sequence[Tensor], growth: Growth, batch: StepBatch, out: HostWeights
    ) -> tuple[Tensor, list[Tensor]]:
        """See ``Trunk``."""
        return differentiate(self, parts, growth, batch, out)


class _Rectify(torch.autograd.Function):
    """max(x, floor) of hosts with a floor of 0 or none at all, in half the passes that autograd takes back over it."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, floor: Tensor, passing: Tensor) -> Tensor:
        out = torch.maximum(x, floor)
        ctx.save_for_backward(out, passing)
        return out

    @staticmethod
    def backward(ctx: Any, above: Tensor) -> tuple[Tensor, None, None]:
        out, passing = ctx.saved_tensors
        # Positive where nothing was cut off.
        return torch.ops.aten.threshold_backward(above, torch.maximum(out, passing), 0.0), None, None


def _unit(x: Tensor, kernel: Tensor) -> Tensor:
    """[n, B * 16, M]"""
    return convolve(x, kernel).relu_().flatten(1, 3)


def _patches(images: NDArray[np.float32]) -> NDArray[np.float32]:
    """[n, 8, 8] as [n, 4, 4, 4]: the pixels of each patch, row by row."""
    cut = images.reshape(len(images), _EDGE, PATCH, _EDGE, PATCH).swapaxes(2, 3)
    return cut.reshape(len(images), _EDGE, _EDGE, PATCH * PATCH)


TRUNK = CnnTrunk
