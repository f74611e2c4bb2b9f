"""``cap``: too few hidden units for labels that are not linearly separable; additive capacity helps."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from simic.hosts.interfaces import HostRecipe, Pairs

__all__ = ["FAMILY", "Cap"]

_COMPONENTS = ((0, 2), (2, 3))
"""Pairs of principal components that make labels a wide layer can learn from 512 samples."""


class Cap:
    """Four classes: the signs of two products, each of a principal component of a and one of b."""

    def recipe(self, draws: NDArray[np.float64]) -> HostRecipe:
        chosen = _COMPONENTS[int(draws[0] * len(_COMPONENTS))]

        def labels(pairs: Pairs) -> NDArray[np.int64]:
            u, v = (digit @ pairs.directions[list(chosen)].T for digit in (pairs.a, pairs.b))
            return ((u[:, 0] * v[:, 0] > 0) * 2 + (u[:, 1] * v[:, 1] > 0)).astype(np.int64)

        hidden = (1 + int(draws[1] * 3), 1 + int(draws[2] * 3))
        return HostRecipe(is_linear=True, hidden=hidden, labels=labels, classes=4)


FAMILY = Cap()
