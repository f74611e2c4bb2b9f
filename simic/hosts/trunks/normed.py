"""``normed``: stem, slot 0, block 1, slot 1, ..., head; block i is relu(BN(W x)), with batch normalisation.

There is no residual connection. Shapes: R rows, B samples, D width.
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
    norm_parts,
    normalised,
    pull_norm,
    with_gradients,
)
from simic.hosts.batched.block_trunk import Block
from simic.hosts.batched.conv import product
from simic.hosts.batched.trunk import TrunkPart
from simic.hosts.trunks.mlp import chain
from simic.hosts.trunks.plain import PlainTrunk, plain

__all__ = ["TRUNK", "NormedTrunk", "normed", "with_norms"]


def with_norms(parts: Sequence[TrunkPart]) -> tuple[TrunkPart, ...]:
    """Return the parts of a plain trunk, stem, blocks and head, with a normalisation behind each block's weights."""
    stem, *blocks, head = parts
    middle = [element for part in blocks for element in (part, *norm_parts(part.shape[-1], part.layer, part.depth))]
    return (stem, *middle, head)


class NormedTrunk(PlainTrunk):
    """The plain trunk with batch normalisation in front of every block's ReLU."""

    parts = with_norms(PlainTrunk.parts)
    per_block = 1 + NORM_PARTS

    def block(self, index: int, parts: Sequence[Tensor], x: Tensor, out: Tensor | None = None) -> Tensor:
        matrix, *norm = self.parts_of(index, parts)
        z = product(x, matrix)
        if torch.is_grad_enabled():
            return with_gradients(z, norm).relu()
        unit = evaluated(z, norm).relu_()
        return unit if out is None else out.copy_(unit)

    def enter(self, index: int, parts: Sequence[Tensor], x: Tensor, out: Tensor) -> Block:
        matrix, *norm = self.parts_of(index, parts)
        normalisation = normalised(product(x, matrix), norm)
        out.copy_(normalisation.output).relu_()
        return _Block(x, matrix, normalisation, norm)


class _Block(NamedTuple):
    x: Tensor
    matrix: Tensor
    found: Normalised
    norm: Sequence[Tensor]

    def pull(self, g: Tensor, hosts: int, out: Sequence[Tensor]) -> Tensor:
        g = torch.ops.aten.threshold_backward(g, self.found.output, 0.0)
        g = pull_norm(g, self.found, self.norm, hosts, out[1:])
        product(self.x[:hosts].transpose(1, 2), g[:hosts], out=out[0])
        return product(g, self.matrix.transpose(1, 2))


def normed(width: int, blocks: int) -> type[NormedTrunk]:
    """Return the trunk with other sizes, for a family of its own."""
    sizes = {"topology": chain(width, blocks), "parts": with_norms(plain(width, blocks).parts)}
    return type(f"Normed{width}x{blocks}", (NormedTrunk,), sizes)


TRUNK = NormedTrunk
