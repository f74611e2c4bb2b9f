"""``heavy``: a wide residual layer on a normalised input."""

from __future__ import annotations

from torch import Tensor
from torch.nn.functional import layer_norm

from simic.hosts.blueprints._layers import adapter, adapter_birth, adapter_sizes, per_seed
from simic.hosts.interfaces import Blueprint, Site

__all__ = ["BLUEPRINT", "Heavy"]

_BIRTH_SCALE = 1.5


def _units(width: int) -> int:
    return width * 4 // 3


class Heavy(Blueprint):
    """delta = relu(((1 + g) LN(h) + b) D + d) U + u with a third more hidden units than features."""

    def parameters(self, site: Site, /) -> int:
        return sum(adapter_sizes(site.width, _units(site.width))) + 2 * site.width

    def birth(self, normals: Tensor, site: Site, /) -> Tensor:
        """Return initial parameters: D is random, all others are zero."""
        return adapter_birth(normals, site.width, _units(site.width), _BIRTH_SCALE)

    def delta(self, parameters: Tensor, h: Tensor, _noise: Tensor | None, /) -> Tensor:
        width = h.shape[-1]
        scale, shift = parameters[:, -2 * width : -width], parameters[:, -width:]
        normal = layer_norm(h, (width,)) * (per_seed(scale, h) + 1.0) + per_seed(shift, h)
        return adapter(parameters, normal, _units(width))


BLUEPRINT = Heavy()
