"""``dropout``: noise against overfitting; has no parameters and does nothing in evaluation."""

from __future__ import annotations

from torch import Tensor, where, zeros_like

__all__ = ["BLUEPRINT", "Dropout"]

_RATE = 0.6


class Dropout:
    """delta = h (keep / (1 - p) - 1) while training, 0 in evaluation (Srivastava et al. 2014)."""

    parameters = 0
    is_noisy = True

    def birth(self, normals: Tensor, /) -> Tensor:
        """See ``Blueprint``."""
        return normals

    def delta(self, _parameters: Tensor, h: Tensor, noise: Tensor | None, /) -> Tensor:
        """See ``Blueprint``."""
        if noise is None:
            return zeros_like(h)
        return where(noise < _RATE, -h, h * (_RATE / (1.0 - _RATE)))


BLUEPRINT = Dropout()
