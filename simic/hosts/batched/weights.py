"""Stacked parameters of N hosts and of the seeds in their slots.

One flat buffer per kind holds all hosts, part by part, so an optimiser step is a handful of elementwise operations
and every matrix is contiguous for ``bmm``.
Shapes: N hosts, S slots, P padded parameters of a seed.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from simic.hosts import rng
from simic.hosts.interfaces import Blueprint, Site
from simic.hosts.rng import Purpose

__all__ = ["HostWeights", "SeedStore", "Shape", "finite_rows", "initial_seed"]

Shape = tuple[int, ...]


class HostWeights(NamedTuple):
    """Parameters, gradients or momenta of N hosts."""

    flat: Tensor
    """[N * parameters], part by part."""
    parts: tuple[Tensor, ...]
    """The same memory, [N, *shape] each."""

    @staticmethod
    def zeros(hosts: int, shapes: Sequence[Shape]) -> HostWeights:
        """Return weights of zero."""
        return HostWeights.view_of(torch.zeros(hosts * sum(map(prod, shapes))), hosts, shapes)

    @staticmethod
    def view_of(flat: Tensor, hosts: int, shapes: Sequence[Shape]) -> HostWeights:
        """Return views of flat memory as parts."""
        cuts = torch.split(flat, [hosts * prod(shape) for shape in shapes])
        return HostWeights(flat, tuple(cut.view(hosts, *shape) for cut, shape in zip(cuts, shapes, strict=True)))

    def copy(self) -> HostWeights:
        """Return a copy on the CPU."""
        return self._of(self.flat.to("cpu", copy=True))

    def on(self, device: torch.device) -> HostWeights:
        """Return the values on a device, without a copy if they are there already."""
        return self._of(self.flat.to(device))

    def _of(self, flat: Tensor) -> HostWeights:
        return HostWeights.view_of(flat, len(self.parts[0]), [tuple(part.shape[1:]) for part in self.parts])

    def restore(self, other: HostWeights, hosts: Tensor) -> None:
        """Copy the given hosts from ``other``."""
        for mine, theirs in zip(self.parts, other.parts, strict=True):
            mine[hosts] = theirs[hosts].to(mine.device)


class SeedStore(NamedTuple):
    """Parameters and momenta of every slot's seed, zero where there is none."""

    parameters: Tensor
    """[N, S, P]"""
    momentum: Tensor
    """[N, S, P]"""

    @staticmethod
    def zeros(hosts: int, slots: int, parameters: int) -> SeedStore:
        """Return a store of empty slots."""
        return SeedStore(torch.zeros(hosts, slots, parameters), torch.zeros(hosts, slots, parameters))

    def copy(self) -> SeedStore:
        """Return a copy on the CPU."""
        return SeedStore(self.parameters.to("cpu", copy=True), self.momentum.to("cpu", copy=True))

    def on(self, device: torch.device) -> SeedStore:
        """Return the values on a device, without a copy if they are there already."""
        return SeedStore(self.parameters.to(device), self.momentum.to(device))

    def clear(self, where: NDArray[np.bool_]) -> None:
        """Set the slots ``where`` [N, S] to zero."""
        chosen = torch.from_numpy(where)
        self.parameters[chosen] = 0.0
        self.momentum[chosen] = 0.0

    def is_clear(self) -> NDArray[np.bool_]:
        """Return bool [N, S]: slots that hold zeros only."""
        result: NDArray[np.bool_] = ~(self.parameters.any(dim=2) | self.momentum.any(dim=2)).cpu().numpy()
        return result


def initial_seed(key: int, slot: int, number: int, blueprint: Blueprint, site: Site) -> Tensor:
    """Return initial parameters [P] of the ``number``-th seed in a host's slot."""
    stream = rng.streams(key, Purpose.BIRTH, slot, number)
    return blueprint.birth(torch.from_numpy(rng.normals(stream, blueprint.parameters(site))), site)[0]


def finite_rows(tensors: Sequence[Tensor], leading: int) -> NDArray[np.bool_]:
    """Return which rows, over the first ``leading`` dimensions, are finite in all tensors.

    Rows are checked one by one only if a tensor's total is not finite.
    """
    good = np.ones(tuple(tensors[0].shape[:leading]), dtype=bool)
    for tensor in tensors:
        if not torch.isfinite(tensor.sum()):
            good &= tensor.isfinite().flatten(leading).all(dim=-1).cpu().numpy()
    return good
