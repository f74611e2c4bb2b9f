"""Layers that several blueprints share. Shapes: n seeds, B samples, D features, U units."""

from __future__ import annotations

from abc import abstractmethod

from torch import Tensor, cat, split, zeros_like

from simic.hosts.batched.conv import KERNEL, convolve, product
from simic.hosts.interfaces import Blueprint, Site

__all__ = ["Convolutional", "adapter", "adapter_birth", "adapter_sizes", "per_seed", "project"]


def per_seed(values: Tensor, h: Tensor) -> Tensor:
    """Reshape values [n, D] to broadcast against h [n, B, *space, D]."""
    return values.view(len(values), *[1] * (h.dim() - 2), -1)


def project(h: Tensor, weight: Tensor) -> Tensor:
    """Multiply h [n, B, *space, D] by weight [n, D, U] at every position."""
    if h.dim() == 3:
        return product(h, weight)
    return product(h.flatten(1, -2), weight).view(*h.shape[:-1], -1)


def adapter_sizes(width: int, units: int) -> list[int]:
    """Return the numbers of parameters of D, U, d and u."""
    return [width * units, units * width, units, width]


def adapter_birth(normals: Tensor, width: int, units: int, scale: float = 1.0) -> Tensor:
    """Return initial parameters from normals [n, P]: D is random, all others are zero."""
    down = normals[:, : width * units] * (scale * (2.0 / width) ** 0.5)
    return cat([down, zeros_like(normals[:, width * units :])], dim=1)


def adapter(parameters: Tensor, h: Tensor, units: int) -> Tensor:
    """Return relu(h D + d) U + u for h [n, B, *space, D] from parameters [n, >= adapter_sizes]."""
    width = h.shape[-1]
    sizes = adapter_sizes(width, units)
    down, up, down_bias, up_bias = split(parameters[:, : sum(sizes)], sizes, dim=1)
    hidden = (project(h, down.view(-1, width, units)) + per_seed(down_bias, h)).relu()
    return project(hidden, up.view(-1, units, width)) + per_seed(up_bias, h)


class Convolutional(Blueprint):
    """delta = relu(W * h + w) U + u with W 3x3 kernels, for maps; initially W is random and all others are zero."""

    @abstractmethod
    def inputs(self, width: int, /) -> int:
        """Return the number of input features of each hidden channel."""

    @abstractmethod
    def kernel(self, values: Tensor, width: int, /) -> Tensor:
        """Return W [n, 3, 3, D, D] from its parameters [n, 9 * D * inputs]."""

    def suits(self, site: Site, /) -> bool:
        return len(site.space) == 2

    def parameters(self, site: Site, /) -> int:
        return sum(self._sizes(site.width))

    def birth(self, normals: Tensor, site: Site, /) -> Tensor:
        count = self._sizes(site.width)[0]
        kernel = normals[:, :count] * (2.0 / (KERNEL * KERNEL * self.inputs(site.width))) ** 0.5
        return cat([kernel, zeros_like(normals[:, count:])], dim=1)

    def delta(self, parameters: Tensor, h: Tensor, _noise: Tensor | None, /) -> Tensor:
        width = h.shape[-1]
        values, up, bias, up_bias = split(parameters, self._sizes(width), dim=1)
        hidden = (convolve(h, self.kernel(values, width)) + per_seed(bias, h)).relu()
        return project(hidden, up.view(-1, width, width)) + per_seed(up_bias, h)

    def _sizes(self, width: int) -> list[int]:
        """Return the numbers of parameters of W, U, w and u."""
        return [KERNEL * KERNEL * width * self.inputs(width), width * width, width, width]
