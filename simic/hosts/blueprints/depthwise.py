"""``depthwise``: sees a position's neighbours feature by feature, then mixes the features."""

from __future__ import annotations

from torch import Tensor, cat, diag_embed, split, zeros_like

from simic.hosts.blueprints._layers import per_seed, project
from simic.hosts.protocols import Blueprint, Site
from simic.hosts.stacked.maps import KERNEL, convolve

__all__ = ["BLUEPRINT", "Depthwise"]


def _sizes(width: int) -> list[int]:
    """Parameters of W, U, w and u."""
    return [KERNEL * KERNEL * width, width * width, width, width]


class Depthwise(Blueprint):
    """delta = relu(W * h + w) U + u with a 3x3 kernel per feature; for maps (Howard et al. 2017, arXiv:1704.04861)."""

    def suits(self, site: Site, /) -> bool:
        """See ``Blueprint``."""
        return len(site.space) == 2

    def parameters(self, site: Site, /) -> int:
        """See ``Blueprint``."""
        return sum(_sizes(site.width))

    def birth(self, normals: Tensor, site: Site, /) -> Tensor:
        """See ``Blueprint``: W is random, U and the biases are zero."""
        count = _sizes(site.width)[0]
        kernel = normals[:, :count] * (2.0 / (KERNEL * KERNEL)) ** 0.5
        return cat([kernel, zeros_like(normals[:, count:])], dim=1)

    def delta(self, parameters: Tensor, h: Tensor, _noise: Tensor | None, /) -> Tensor:
        """See ``Blueprint``."""
        width = h.shape[-1]
        kernel, up, bias, up_bias = split(parameters, _sizes(width), dim=1)
        # Few features: a full kernel with zeros off its diagonal is faster than nine shifted products.
        full = diag_embed(kernel.view(-1, KERNEL, KERNEL, width))
        hidden = (convolve(h, full) + per_seed(bias, h)).relu()
        return project(hidden, up.view(-1, width, width)) + per_seed(up_bias, h)


BLUEPRINT = Depthwise()
