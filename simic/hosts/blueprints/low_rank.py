"""``low_rank``: a linear correction of rank two; the cheapest blueprint that mixes features."""

from __future__ import annotations

from torch import Tensor, cat, split, zeros_like

from simic.hosts.blueprints._layers import project
from simic.hosts.interfaces import Blueprint, Site

__all__ = ["BLUEPRINT", "LowRank"]

_RANK = 2


class LowRank(Blueprint):
    """delta = h A B, as low-rank adaptation adds to a layer (Hu et al. 2022, arXiv:2106.09685)."""

    def parameters(self, site: Site, /) -> int:
        return 2 * _RANK * site.width

    def birth(self, normals: Tensor, site: Site, /) -> Tensor:
        """Return initial parameters: A is random, B is zero."""
        first = normals[:, : _RANK * site.width] * site.width**-0.5
        return cat([first, zeros_like(normals[:, _RANK * site.width :])], dim=1)

    def delta(self, parameters: Tensor, h: Tensor, _noise: Tensor | None, /) -> Tensor:
        width = h.shape[-1]
        first, second = split(parameters, _RANK * width, dim=1)
        return project(project(h, first.view(-1, width, _RANK)), second.view(-1, _RANK, width))


BLUEPRINT = LowRank()
