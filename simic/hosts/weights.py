"""Stacked parameters of N hosts and of the seeds in their slots.

One flat buffer per kind holds all hosts, segment by segment, so an optimiser step is a handful of
elementwise operations and every matrix is contiguous for ``bmm``. Masked hidden units have zero columns in ``down``
and zero rows in ``up``; then their gradients are exactly zero as well, so no mask is applied anywhere else.
Shapes: N hosts, D width, M hidden, P padded parameters of a seed.
"""

from __future__ import annotations

from math import prod
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from simic.hosts import counter_rng
from simic.hosts.anatomy import BLOCKS, CLASSES, HIDDEN, INPUTS, SLOTS, WIDTH
from simic.hosts.counter_rng import Purpose
from simic.hosts.protocols import Blueprint

__all__ = ["SEGMENTS", "HostWeights", "SeedStore", "birth_of_hosts", "birth_of_seed"]

SEGMENTS: tuple[tuple[int, int], ...] = (
    (INPUTS, WIDTH),
    *((WIDTH, HIDDEN), (HIDDEN, WIDTH)) * BLOCKS,
    (CLASSES, WIDTH),
)
"""Stem, then down and up of each block, then head."""

_STEM_SCALE = 1.0 / np.sqrt(INPUTS)
_DOWN_SCALE = np.sqrt(2.0 / WIDTH)
_UP_SCALE = 0.5 / np.sqrt(HIDDEN)
_HEAD_SCALE = 0.5 / np.sqrt(WIDTH)


class HostWeights(NamedTuple):
    """Parameters, gradients or momenta of N hosts."""

    flat: Tensor
    """[N * parameters], segment by segment."""
    stem: Tensor
    """[N, 34, D]"""
    down: tuple[Tensor, ...]
    """[N, D, M] per block."""
    up: tuple[Tensor, ...]
    """[N, M, D] per block."""
    head: Tensor
    """[N, 10, D]"""

    @staticmethod
    def zeros(hosts: int) -> HostWeights:
        """All zero."""
        return HostWeights.view_of(torch.zeros(hosts * sum(prod(shape) for shape in SEGMENTS)), hosts)

    @staticmethod
    def view_of(flat: Tensor, hosts: int) -> HostWeights:
        """The same memory as matrices."""
        cuts = torch.split(flat, [hosts * prod(shape) for shape in SEGMENTS])
        parts = [cut.view(hosts, *shape) for cut, shape in zip(cuts, SEGMENTS, strict=True)]
        return HostWeights(flat, parts[0], tuple(parts[1:-1:2]), tuple(parts[2:-1:2]), parts[-1])

    @property
    def segments(self) -> tuple[Tensor, ...]:
        """In the order of ``SEGMENTS``."""
        blocks = (part for pair in zip(self.down, self.up, strict=True) for part in pair)
        return (self.stem, *blocks, self.head)

    def restore(self, other: HostWeights, hosts: Tensor) -> None:
        """Copy the given hosts from another set."""
        for mine, theirs in zip(self.segments, other.segments, strict=True):
            mine[hosts] = theirs[hosts]


class SeedStore(NamedTuple):
    """Parameters and momenta of every slot's seed, zero where there is none."""

    parameters: Tensor
    """[N, slots, P]"""
    momentum: Tensor
    """[N, slots, P]"""

    @staticmethod
    def zeros(hosts: int, parameters: int) -> SeedStore:
        """All slots empty."""
        return SeedStore(torch.zeros(hosts, SLOTS, parameters), torch.zeros(hosts, SLOTS, parameters))

    def clear(self, where: NDArray[np.bool_]) -> None:
        """Make the slots [N, slots] as if never used."""
        chosen = torch.from_numpy(where)
        self.parameters[chosen] = 0.0
        self.momentum[chosen] = 0.0

    def is_clear(self) -> NDArray[np.bool_]:
        """Which slots [N, slots] hold nothing but zeros."""
        result: NDArray[np.bool_] = ~(self.parameters.any(dim=2) | self.momentum.any(dim=2)).numpy()
        return result


def birth_of_hosts(keys: NDArray[np.int64], hidden: NDArray[np.int64]) -> HostWeights:
    """Initial weights from host keys [N] and live hidden units [N, blocks]."""
    weights = HostWeights.zeros(len(keys))
    scales = (_STEM_SCALE, *(_DOWN_SCALE, _UP_SCALE) * BLOCKS, _HEAD_SCALE)
    for index, (part, scale) in enumerate(zip(weights.segments, scales, strict=True)):
        draws = counter_rng.normals(counter_rng.streams(keys, Purpose.WEIGHTS, index), part[0].numel())
        part.copy_(torch.from_numpy(draws * np.float32(scale)).view_as(part))
    for block in range(BLOCKS):
        is_dead = torch.from_numpy(np.arange(HIDDEN) >= hidden[:, block, None])
        weights.down[block].masked_fill_(is_dead[:, None, :], 0.0)
        weights.up[block].masked_fill_(is_dead[:, :, None], 0.0)
    return weights


def birth_of_seed(key: int, slot: int, number: int, blueprint: Blueprint) -> Tensor:
    """Parameters [P] of the ``number``-th seed a host's slot ever held."""
    stream = counter_rng.streams(key, Purpose.BIRTH, slot, number)
    return blueprint.birth(torch.from_numpy(counter_rng.normals(stream, blueprint.parameters)))[0]
