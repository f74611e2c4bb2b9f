"""``dense``: a residual layer of medium width."""

from __future__ import annotations

from torch import Tensor, bmm, cat, split, zeros_like

from simic.hosts.anatomy import WIDTH

__all__ = ["BLUEPRINT", "Dense"]

_UNITS = 12
_SIZES = [WIDTH * _UNITS, _UNITS * WIDTH, _UNITS, WIDTH]


class Dense:
    """delta = relu(h D + d) U + u with 12 hidden units."""

    parameters = sum(_SIZES)
    is_noisy = False

    def birth(self, normals: Tensor, /) -> Tensor:
        """See ``Blueprint``: D is random, U and the biases are zero."""
        down = normals[:, : _SIZES[0]] * (2.0 / WIDTH) ** 0.5
        return cat([down, zeros_like(normals[:, _SIZES[0] :])], dim=1)

    def delta(self, parameters: Tensor, h: Tensor, _noise: Tensor | None, /) -> Tensor:
        """See ``Blueprint``."""
        down, up, down_bias, up_bias = split(parameters, _SIZES, dim=1)
        hidden = (bmm(h, down.view(-1, WIDTH, _UNITS)) + down_bias.unsqueeze(1)).relu()
        return bmm(hidden, up.view(-1, _UNITS, WIDTH)) + up_bias.unsqueeze(1)


BLUEPRINT = Dense()
