"""``gate``: scales each feature depending on the sample."""

from __future__ import annotations

from torch import Tensor
from torch.nn.functional import layer_norm

from simic.hosts.blueprints._layers import adapter, adapter_birth, adapter_sizes
from simic.hosts.interfaces import Blueprint, Operator, Site

__all__ = ["BLUEPRINT", "Gate"]

_STEEPNESS = 2.0


def _units(width: int) -> int:
    return max(4, width // 6)


class Gate(Blueprint):
    """Each feature is scaled by 0 to 2, at birth by 1: delta = 2 (relu(LN(s) D + d) U + u) under the gate operator.

    The gate reads the normalised state, so it does not depend on the scale of h. On a map, s is the
    mean over positions, so whole channels are scaled: squeeze and excitation (Hu et al. 2018, arXiv:1709.01507).
    """

    operator = Operator.GATE

    def parameters(self, site: Site, /) -> int:
        return sum(adapter_sizes(site.width, _units(site.width)))

    def birth(self, normals: Tensor, site: Site, /) -> Tensor:
        """Return initial parameters: D is random, U and the biases are zero."""
        return adapter_birth(normals, site.width, _units(site.width))

    def delta(self, parameters: Tensor, h: Tensor, _noise: Tensor | None, /) -> Tensor:
        width = h.shape[-1]
        squeezed = h if h.dim() == 3 else h.flatten(2, -2).mean(dim=2)
        logit = adapter(parameters, layer_norm(squeezed, (width,)), _units(width)) * _STEEPNESS
        return logit.view(*h.shape[:2], *[1] * (h.dim() - 3), width).expand_as(h)


BLUEPRINT = Gate()
