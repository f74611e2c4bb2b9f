"""``match``: too few hidden channels to compare two images position by position; additive capacity helps.

The counterpart of ``cap`` for maps: a small convolution cannot compute products of components of whole images, but it
can compute products at one position.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from simic.hosts.interfaces import HostRecipe, Pairs

__all__ = ["FAMILY", "Match"]

_EDGE = 4
"""Rows and columns of the features."""


class Match:
    """Four classes: whether a and b are alike, on average, in one half of the image, and in the other."""

    kind = "cnn"

    def recipe(self, draws: NDArray[np.float64]) -> HostRecipe:
        """Return a host whose halves are top and bottom, or left and right."""
        is_upright = bool(draws[0] < 0.5)

        def labels(pairs: Pairs) -> NDArray[np.int64]:
            alike = (pairs.a.astype(np.float64) * pairs.b).reshape(-1, _EDGE, _EDGE).sum(axis=2 if is_upright else 1)
            first, second = alike[:, : _EDGE // 2].sum(axis=1), alike[:, _EDGE // 2 :].sum(axis=1)
            return np.where(first > 0, 2, 0) + np.where(second > 0, 1, 0)

        hidden = (1 + int(draws[1] * 3), 1 + int(draws[2] * 3))
        return HostRecipe(is_linear=True, hidden=hidden, labels=labels, classes=4)


FAMILY = Match()
