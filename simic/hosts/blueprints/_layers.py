"""Parts that several blueprints are made of. Shapes: n seeds, B samples, D features, U units."""

from __future__ import annotations

from torch import Tensor, bmm, cat, split, zeros_like

__all__ = ["adapter", "adapter_birth", "adapter_sizes", "per_seed", "project"]


def per_seed(values: Tensor, h: Tensor) -> Tensor:
    """Values [n, D] shaped to meet h [n, B, *space, D] elementwise."""
    return values.view(len(values), *[1] * (h.dim() - 2), -1)


def project(h: Tensor, weight: Tensor) -> Tensor:
    """h [n, B, *space, D] times weight [n, D, U], position by position."""
    if h.dim() == 3:
        return bmm(h, weight)
    return bmm(h.flatten(1, -2), weight).view(*h.shape[:-1], -1)


def adapter_sizes(width: int, units: int) -> list[int]:
    """Parameters of D, U, d and u."""
    return [width * units, units * width, units, width]


def adapter_birth(normals: Tensor, width: int, units: int, scale: float = 1.0) -> Tensor:
    """D is random, everything else is zero; from normals [n, P]."""
    down = normals[:, : width * units] * (scale * (2.0 / width) ** 0.5)
    return cat([down, zeros_like(normals[:, width * units :])], dim=1)


def adapter(parameters: Tensor, h: Tensor, units: int) -> Tensor:
    """relu(h D + d) U + u from parameters [n, >= adapter_sizes]; h [n, B, *space, D]."""
    width = h.shape[-1]
    sizes = adapter_sizes(width, units)
    down, up, down_bias, up_bias = split(parameters[:, : sum(sizes)], sizes, dim=1)
    hidden = (project(h, down.view(-1, width, units)) + per_seed(down_bias, h)).relu()
    return project(hidden, up.view(-1, units, width)) + per_seed(up_bias, h)
