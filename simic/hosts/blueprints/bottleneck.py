"""``bottleneck``: a small residual adapter."""

from __future__ import annotations

from torch import Tensor

from simic.hosts.blueprints._layers import adapter, adapter_birth, adapter_sizes
from simic.hosts.interfaces import Blueprint, Site

__all__ = ["BLUEPRINT", "Bottleneck"]


def _units(width: int) -> int:
    return max(4, width // 6)


class Bottleneck(Blueprint):
    """delta = relu(h D + d) U + u with a sixth as many hidden units as features, at least four."""

    def parameters(self, site: Site, /) -> int:
        return sum(adapter_sizes(site.width, _units(site.width)))

    def birth(self, normals: Tensor, site: Site, /) -> Tensor:
        """Return initial parameters: D is random, U and the biases are zero."""
        return adapter_birth(normals, site.width, _units(site.width))

    def delta(self, parameters: Tensor, h: Tensor, _noise: Tensor | None, /) -> Tensor:
        return adapter(parameters, h, _units(h.shape[-1]))


BLUEPRINT = Bottleneck()
