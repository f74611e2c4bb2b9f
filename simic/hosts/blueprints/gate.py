"""``gate``: lets features through or blocks them, depending on the sample."""

from __future__ import annotations

from torch import Tensor, bmm, cat, split, zeros_like
from torch.nn.functional import layer_norm

from simic.hosts.anatomy import WIDTH

__all__ = ["BLUEPRINT", "Gate"]

_UNITS = 4
_STEEPNESS = 2.0
_SIZES = [WIDTH * _UNITS, _UNITS * WIDTH, _UNITS, WIDTH]


class Gate:
    """delta = h (2 sigmoid(2 (relu(LN(h) D + d) U + u)) - 1): each feature is scaled by 0 to 2, at birth by 1.

    The gate looks at the normalised state, so how far it opens does not depend on the scale of h.
    """

    parameters = sum(_SIZES)
    is_noisy = False

    def birth(self, normals: Tensor, /) -> Tensor:
        """See ``Blueprint``: D is random, U and the biases are zero."""
        down = normals[:, : _SIZES[0]] * (2.0 / WIDTH) ** 0.5
        return cat([down, zeros_like(normals[:, _SIZES[0] :])], dim=1)

    def delta(self, parameters: Tensor, h: Tensor, _noise: Tensor | None, /) -> Tensor:
        """See ``Blueprint``."""
        down, up, down_bias, up_bias = split(parameters, _SIZES, dim=1)
        hidden = (bmm(layer_norm(h, (WIDTH,)), down.view(-1, WIDTH, _UNITS)) + down_bias.unsqueeze(1)).relu()
        logit = bmm(hidden, up.view(-1, _UNITS, WIDTH)) + up_bias.unsqueeze(1)
        return h * ((logit * _STEEPNESS).sigmoid() * 2.0 - 1.0)


BLUEPRINT = Gate()
