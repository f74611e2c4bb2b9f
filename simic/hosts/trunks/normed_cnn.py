"""``normed_cnn``: stem, slot 0, block 1, slot 1, ..., head, on 4x4 maps; block i is relu(BN(W * x)), a 3x3 convolution.

There is no residual connection. The head reads the whole map, or the mean over its positions.
Shapes: R rows, B samples, Y rows and X columns of a map, D channels.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from simic.hosts.batched.batch_norm import (
    NORM_PARTS,
    Normalised,
    evaluated,
    normalised,
    pull_norm,
    with_gradients,
)
from simic.hosts.batched.block_trunk import Block
from simic.hosts.batched.conv import band_matrices, by_sample, convolve, kernel_gradient, meet, pad, state_gradient
from simic.hosts.trunks.cnn import AT_A_TIME
from simic.hosts.trunks.normed import with_norms
from simic.hosts.trunks.plain_cnn import PlainCnnTrunk, plain_cnn

__all__ = ["TRUNK", "NormedCnnTrunk", "normed_cnn"]


class NormedCnnTrunk(PlainCnnTrunk):
    """The plain convolutional trunk with batch normalisation, over samples and positions, before every block's ReLU."""

    parts = with_norms(PlainCnnTrunk.parts)
    per_block = 1 + NORM_PARTS

    def block(self, index: int, parts: Sequence[Tensor], x: Tensor, out: Tensor | None = None) -> Tensor:
        kernel, *norm = self.parts_of(index, parts)
        if torch.is_grad_enabled():
            z = convolve(x, kernel)
            return with_gradients(z.flatten(1, 3), norm).view(z.shape).relu()
        out = torch.empty_like(x) if out is None else out
        at_a_time = AT_A_TIME if x.device.type == "cpu" else len(x)
        for some in (slice(start, start + at_a_time) for start in range(0, len(x), at_a_time)):
            rows = meet(pad(x[some]), band_matrices(kernel[some], x.shape[3]))
            unit = evaluated(_by_channel(rows, x), [part[some] for part in norm]).relu_()
            out[some] = by_sample(unit.view(rows.shape), x.shape[1], x.shape[3])
        return out

    def enter(self, index: int, parts: Sequence[Tensor], x: Tensor, out: Tensor) -> Block:
        kernel, *norm = self.parts_of(index, parts)
        padded, bands = pad(x), band_matrices(kernel, x.shape[3])
        rows = meet(padded, bands)
        normalisation = normalised(_by_channel(rows, x), norm)
        z = by_sample(normalisation.output.view(rows.shape), x.shape[1], x.shape[3])
        out.copy_(z).relu_()
        return _Block(padded, bands, z, normalisation, norm)


def _by_channel(rows: Tensor, x: Tensor) -> Tensor:
    """Return [R, Y * B, X * D] as [R, Y * B * X, D], the channels of ``x``; a view."""
    return rows.view(len(rows), -1, x.shape[4])


class _Block(NamedTuple):
    padded: Tensor
    bands: tuple[Tensor, ...]
    z: Tensor
    """[R, B, Y, X, D]: BN(W * x)."""
    found: Normalised
    norm: Sequence[Tensor]

    def pull(self, g: Tensor, hosts: int, out: Sequence[Tensor]) -> Tensor:
        samples, width = g.shape[1], g.shape[3]
        by_row = torch.ops.aten.threshold_backward(g, self.z, 0.0).transpose(1, 2)
        pulled = pull_norm(by_row.flatten(1, 3), self.found, self.norm, hosts, out[1:])
        above = pad(pulled.view(by_row.shape).transpose(1, 2))
        out[0].copy_(kernel_gradient(self.padded[:hosts], above[:hosts], out[0].shape))
        return by_sample(state_gradient(above, self.bands), samples, width).contiguous()


def normed_cnn(channels: int, blocks: int, *, is_pooled: bool = False) -> type[NormedCnnTrunk]:
    """Return the trunk with other sizes, for a family of its own."""
    base = plain_cnn(channels, blocks, is_pooled=is_pooled)
    sizes = {"topology": base.topology, "parts": with_norms(base.parts)}
    return type(f"Normed{base.__name__}", (NormedCnnTrunk, base), sizes)


TRUNK = NormedCnnTrunk
