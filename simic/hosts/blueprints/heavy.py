"""``heavy``: a wide residual layer on a normalised input."""

from __future__ import annotations

from torch import Tensor, bmm, cat, split, zeros_like
from torch.nn.functional import layer_norm

from simic.hosts.anatomy import WIDTH

__all__ = ["BLUEPRINT", "Heavy"]

_UNITS = 32
_BIRTH_SCALE = 1.5 * (2.0 / WIDTH) ** 0.5
_SIZES = [WIDTH * _UNITS, _UNITS * WIDTH, _UNITS, WIDTH, WIDTH, WIDTH]


class Heavy:
    """delta = relu(((1 + g) LN(h) + b) D + d) U + u with 32 hidden units."""

    parameters = sum(_SIZES)
    is_noisy = False

    def birth(self, normals: Tensor, /) -> Tensor:
        """See ``Blueprint``: D is random, everything else is zero."""
        down = normals[:, : _SIZES[0]] * _BIRTH_SCALE
        return cat([down, zeros_like(normals[:, _SIZES[0] :])], dim=1)

    def delta(self, parameters: Tensor, h: Tensor, _noise: Tensor | None, /) -> Tensor:
        """See ``Blueprint``."""
        down, up, down_bias, up_bias, scale, shift = split(parameters, _SIZES, dim=1)
        normal = layer_norm(h, (WIDTH,)) * (scale.unsqueeze(1) + 1.0) + shift.unsqueeze(1)
        hidden = (bmm(normal, down.view(-1, WIDTH, _UNITS)) + down_bias.unsqueeze(1)).relu()
        return bmm(hidden, up.view(-1, _UNITS, WIDTH)) + up_bias.unsqueeze(1)


BLUEPRINT = Heavy()
