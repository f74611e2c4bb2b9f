"""``norm``: moves each feature towards its layer-normalised value."""

from __future__ import annotations

from torch import Tensor, split, zeros_like
from torch.nn.functional import layer_norm

from simic.hosts.anatomy import WIDTH

__all__ = ["BLUEPRINT", "Norm"]

_PACE = 4.0
"""Scales the blending weights, so that a norm can form within a few epochs."""


class Norm:
    """delta = g (LN(h) - h) + b, per feature; g = 1 is a full layer norm (Ba et al. 2016, arXiv:1607.06450)."""

    parameters = 2 * WIDTH
    is_noisy = False

    def birth(self, normals: Tensor, /) -> Tensor:
        """See ``Blueprint``."""
        return zeros_like(normals)

    def delta(self, parameters: Tensor, h: Tensor, _noise: Tensor | None, /) -> Tensor:
        """See ``Blueprint``."""
        weight, bias = split(parameters.unsqueeze(1), WIDTH, dim=2)
        return (layer_norm(h, (WIDTH,)) - h) * (weight * _PACE) + bias


BLUEPRINT = Norm()
