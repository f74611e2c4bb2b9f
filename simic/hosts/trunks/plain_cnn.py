"""``plain_cnn``: stem, slot 0, block 1, slot 1, ..., head, on 4x4 maps; block i is relu(W * x), a 3x3 convolution.

There is no residual connection. The head reads the whole map, or the mean over its positions.
Shapes: R rows, B samples, D channels.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from simic.hosts.batched.block_trunk import Block, BlockTrunk
from simic.hosts.batched.conv import (
    KERNEL,
    band_matrices,
    by_sample,
    convolve,
    kernel_gradient,
    meet,
    pad,
    state_gradient,
)
from simic.hosts.batched.sizes import BLOCKS, CLASSES
from simic.hosts.batched.trunk import TrunkPart
from simic.hosts.interfaces import HostRecipe, HostTopology, Pairs, Site
from simic.hosts.trunks.cnn import AT_A_TIME, CHANNELS, EDGE, STEM_FEATURES, CnnTrunk
from simic.hosts.trunks.mlp import chain

__all__ = ["TRUNK", "PlainCnnTrunk", "plain_cnn"]

_POSITIONS = EDGE * EDGE


def _chain(channels: int, blocks: int) -> HostTopology:
    """Return the chain of layers whose states are maps."""
    return chain(channels, blocks)._replace(sites=(Site(channels, (EDGE, EDGE)),) * (1 + blocks))


def _parts(channels: int, blocks: int, read: int) -> tuple[TrunkPart, ...]:
    """Return the parts of a host whose head reads ``read`` features."""
    shape, scale = (KERNEL, KERNEL, channels, channels), float(np.sqrt(2.0 / (KERNEL * KERNEL * channels)))
    return (
        TrunkPart((STEM_FEATURES, channels), float(1.0 / np.sqrt(STEM_FEATURES)), layer=0, depth=0),
        *(TrunkPart(shape, scale, layer=1 + block, depth=1 + block) for block in range(blocks)),
        TrunkPart((CLASSES, read), float(0.5 / np.sqrt(read)), layer=1 + blocks, depth=1 + blocks),
    )


class PlainCnnTrunk(BlockTrunk):
    """The plain convolutional trunk. Its blocks have no hidden units, so a recipe's numbers of them have no effect."""

    topology = _chain(CHANNELS, BLOCKS)
    parts = _parts(CHANNELS, BLOCKS, _POSITIONS * CHANNELS)
    per_block = 1

    def __init__(self, recipes: Sequence[HostRecipe]) -> None:
        super().__init__(recipes)
        self.hidden: NDArray[np.float64] = np.full((len(recipes), len(self.topology.sites) - 1), np.nan)

    @staticmethod
    def inputs(pairs: Pairs) -> NDArray[np.float32]:
        """Return [n, 4, 4, 10], as the residual trunk reads them."""
        return CnnTrunk.inputs(pairs)

    def block(self, index: int, parts: Sequence[Tensor], x: Tensor, out: Tensor | None = None) -> Tensor:
        if torch.is_grad_enabled():
            return convolve(x, parts[1 + index]).relu()
        out = torch.empty_like(x) if out is None else out
        at_a_time = AT_A_TIME if x.device.type == "cpu" else len(x)
        for some in (slice(start, start + at_a_time) for start in range(0, len(x), at_a_time)):
            self.enter(index, [part[some] for part in parts], x[some], out[some])
        return out

    def enter(self, index: int, parts: Sequence[Tensor], x: Tensor, out: Tensor) -> Block:
        padded, bands = pad(x), band_matrices(parts[1 + index], x.shape[3])
        unit = by_sample(meet(padded, bands).relu_(), x.shape[1], x.shape[3])
        out.copy_(unit)
        return _Block(padded, bands, unit)


class _Block(NamedTuple):
    padded: Tensor
    bands: tuple[Tensor, ...]
    unit: Tensor
    """[R, B, 4, 4, D]: relu(W * x)."""

    def pull(self, g: Tensor, hosts: int, out: Sequence[Tensor]) -> Tensor:
        samples, width = g.shape[1], g.shape[3]
        above = pad(torch.ops.aten.threshold_backward(g, self.unit, 0.0))
        out[0].copy_(kernel_gradient(self.padded[:hosts], above[:hosts], out[0].shape))
        return by_sample(state_gradient(above, self.bands), samples, width).contiguous()


class _Pooled(PlainCnnTrunk):
    """A plain convolutional trunk whose head reads the mean over positions."""

    def read(self, x: Tensor) -> Tensor:
        # A sum of whole maps in a fixed order: a reduction could round differently with the number of rows.
        total = x[:, :, 0, 0].clone()
        for position in range(1, _POSITIONS):
            total += x[:, :, position // EDGE, position % EDGE]
        return total.mul_(1.0 / _POSITIONS)

    def spread(self, g: Tensor, shape: torch.Size) -> Tensor:
        return g.mul(1.0 / _POSITIONS)[:, :, None, None].expand(shape).contiguous()


def plain_cnn(channels: int, blocks: int, *, is_pooled: bool = False) -> type[PlainCnnTrunk]:
    """Return the trunk with other sizes, for a family of its own."""
    base, read = (_Pooled, channels) if is_pooled else (PlainCnnTrunk, _POSITIONS * channels)
    return type(
        f"PlainCnn{channels}x{blocks}",
        (base,),
        {"topology": _chain(channels, blocks), "parts": _parts(channels, blocks, read)},
    )


TRUNK = PlainCnnTrunk
