"""``norm``: removes variation of the state's scale between samples."""

from __future__ import annotations

from torch import Tensor, zeros_like

from simic.hosts.blueprints._layers import per_seed
from simic.hosts.interfaces import Blueprint, Site

__all__ = ["BLUEPRINT", "Norm"]

_PACE = 0.35
"""Factor of the exponents, so that one optimiser step cannot move them past 1."""
_SMALL = 1e-6


class Norm(Blueprint):
    """delta = h (r ** -w - 1) + b with r the root mean square of h over positions and features.

    Per feature, w = 0 is an identity and w = 1 a full RMS norm (Zhang, Sennrich 2019, arXiv:1910.07467); anything
    between shrinks the spread of ln |h| by that share. Learning an exponent stays stable however large h is.
    """

    def parameters(self, site: Site, /) -> int:
        return 2 * site.width

    def birth(self, normals: Tensor, _site: Site, /) -> Tensor:
        """Return initial parameters: all zero."""
        return zeros_like(normals)

    def delta(self, parameters: Tensor, h: Tensor, _noise: Tensor | None, /) -> Tensor:
        width = h.shape[-1]
        weight, bias = per_seed(parameters[:, :width], h), per_seed(parameters[:, width:], h)
        log_size = ((h * h).mean(dim=tuple(range(2, h.dim())), keepdim=True) + _SMALL).log() * 0.5
        return h * ((log_size * (weight * -_PACE)).exp() - 1.0) + bias


BLUEPRINT = Norm()
