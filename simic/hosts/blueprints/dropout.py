"""``dropout``: noise against overfitting, without parameters; the identity in evaluation."""

from __future__ import annotations

from torch import Tensor, where, zeros_like

from simic.hosts.interfaces import Blueprint, Operator, Site

__all__ = ["BLUEPRINT", "Dropout"]

_RATE = 0.6


class Dropout(Blueprint):
    """h times keep / (1 - p) while training (Srivastava et al. 2014); on a map, whole channels are dropped."""

    operator = Operator.MULTIPLY
    is_noisy = True

    def parameters(self, _site: Site, /) -> int:
        return 0

    def birth(self, normals: Tensor, _site: Site, /) -> Tensor:
        return normals

    def delta(self, _parameters: Tensor, h: Tensor, noise: Tensor | None, /) -> Tensor:
        if noise is None:
            return zeros_like(h)
        kept = where(noise < _RATE, -1.0, _RATE / (1.0 - _RATE))
        return kept.view(*h.shape[:2], *[1] * (h.dim() - 3), h.shape[-1]).expand_as(h)


BLUEPRINT = Dropout()
