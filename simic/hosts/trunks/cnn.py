"""``cnn``: stem, slot 0, block 1, slot 1, block 2, slot 2, head, on 4x4 maps; block i is x + V relu(W * x).

Two 8x8 images are cut into 2x2 patches, as for a convolution with stride 2. W is a 3x3 convolution to the
hidden channels, V mixes them at every position, and the head reads the whole map.
Shapes: R rows, B samples, P features of a patch, D channels, M hidden channels.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from simic.contracts.state import LayerKind
from simic.hosts.batched.block_trunk import BlockTrunk
from simic.hosts.batched.conv import (
    KERNEL,
    band_matrices,
    by_sample,
    convolve,
    kernel_gradient,
    meet,
    pad,
    product,
    state_gradient,
)
from simic.hosts.batched.sizes import BLOCKS, CLASSES, CONNECTS, HIDDEN, IMAGE, MONITORS, SLOTS
from simic.hosts.batched.trunk import TrunkPart
from simic.hosts.interfaces import HostRecipe, HostTopology, Pairs, Site

__all__ = ["AT_A_TIME", "CHANNELS", "EDGE", "PATCH", "STEM_FEATURES", "TRUNK", "CnnTrunk"]

PATCH = 2
"""Edge length of a patch in pixels."""
CHANNELS = 12
"""D, channels of the state."""
EDGE = IMAGE // PATCH
"""Rows and columns of the maps."""
STEM_FEATURES = 2 * PATCH * PATCH + 2
"""Pixels of a and of b, selector, and a constant one for the stem's bias."""
_HIDDEN = HIDDEN // 2
"""Largest number of hidden channels: two hidden units of a recipe make one."""
AT_A_TIME = 8
"""Rows at a time in a pass without gradients; larger temporaries would be returned to the system after each use."""
_MAP = EDGE * EDGE * CHANNELS

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


class CnnTrunk(BlockTrunk):
    """The convolutional trunk. Unused hidden channels have zero kernels in W and zero rows in V: no gradient."""

    topology = HostTopology(
        kinds=(LayerKind.STEM, *[LayerKind.BLOCK] * BLOCKS, LayerKind.HEAD),
        widths=(*[CHANNELS] * (1 + BLOCKS), CLASSES),
        connects=CONNECTS,
        sites=(Site(CHANNELS, (EDGE, EDGE)),) * SLOTS,
        monitors=MONITORS,
        classes=CLASSES,
    )
    per_block = 2
    parts = (
        TrunkPart((STEM_FEATURES, CHANNELS), float(1.0 / np.sqrt(STEM_FEATURES)), layer=0, depth=0),
        *_BLOCK_PARTS,
        TrunkPart((CLASSES, _MAP), float(0.5 / np.sqrt(_MAP)), layer=1 + BLOCKS, depth=SLOTS),
    )

    def __init__(self, recipes: Sequence[HostRecipe]) -> None:
        super().__init__(recipes)
        units = np.array([recipe.hidden for recipe in recipes], dtype=np.int64)
        self.hidden: NDArray[np.int64] = (units + 1) // 2

    @staticmethod
    def inputs(pairs: Pairs) -> NDArray[np.float32]:
        """Return [n, 4, 4, 10]: per patch the pixels of image a and b, the selector as -1 or 1, and a one."""
        inputs = np.empty((len(pairs.image_a), EDGE, EDGE, STEM_FEATURES), dtype=np.float32)
        pixels = PATCH * PATCH
        inputs[..., :pixels], inputs[..., pixels : 2 * pixels] = _patches(pairs.image_a), _patches(pairs.image_b)
        inputs[..., -2] = np.where(pairs.selector, 1.0, -1.0)[:, None, None]
        inputs[..., -1] = 1.0
        return inputs

    def block(self, index: int, parts: Sequence[Tensor], x: Tensor, out: Tensor | None = None) -> Tensor:
        if torch.is_grad_enabled():
            unit = convolve(x, parts[1 + 2 * index]).relu().flatten(1, 3)
            return product(unit, parts[2 + 2 * index], x.flatten(1, 3)).view(x.shape)
        out = torch.empty_like(x) if out is None else out
        at_a_time = AT_A_TIME if x.device.type == "cpu" else len(x)
        for some in (slice(start, start + at_a_time) for start in range(0, len(x), at_a_time)):
            self.enter(index, [part[some] for part in parts], x[some], out[some])
        return out

    def enter(self, index: int, parts: Sequence[Tensor], x: Tensor, out: Tensor) -> _Block:
        kernel, matrix = parts[1 + 2 * index], parts[2 + 2 * index]
        samples, width = x.shape[1], x.shape[3]
        padded, bands = pad(x), band_matrices(kernel, width)
        unit = by_sample(meet(padded, bands).relu_(), samples, width).flatten(1, 3)
        product(unit, matrix, x.flatten(1, 3), out.flatten(1, 3))
        return _Block(padded, bands, unit, matrix)


class _Block(NamedTuple):
    padded: Tensor
    bands: tuple[Tensor, ...]
    unit: Tensor
    """[R, B * 16, M]: relu(W * x)."""
    matrix: Tensor

    def pull(self, g: Tensor, hosts: int, out: Sequence[Tensor]) -> Tensor:
        flat, (samples, height, width) = g.flatten(1, 3), g.shape[1:4]
        out[1].copy_(product(self.unit[:hosts].transpose(1, 2), flat[:hosts]))
        inner = product(flat, self.matrix.transpose(1, 2))
        inner = torch.ops.aten.threshold_backward(inner, self.unit, 0.0)
        above = pad(inner.view(len(g), samples, height, width, -1))
        out[0].copy_(kernel_gradient(self.padded[:hosts], above[:hosts], out[0].shape))
        return g.add_(by_sample(state_gradient(above, self.bands), samples, width))


def _patches(images: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return [n, 8, 8] as [n, 4, 4, 4]: the pixels of each patch, by rows."""
    cut = images.reshape(len(images), EDGE, PATCH, EDGE, PATCH).swapaxes(2, 3)
    return cut.reshape(len(images), EDGE, EDGE, PATCH * PATCH)


TRUNK = CnnTrunk
