"""The family of hosts of the demonstration, which the consumers' networks resemble."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from simic.hosts.interfaces import HostRecipe, Pairs

COMPONENTS = (0, 2)
"""Principal components whose signs make the labels."""


def signs(pairs: Pairs) -> NDArray[np.int64]:
    """Four classes: the signs of two products, each of a component of the first image and one of the second."""
    first, second = (digit @ pairs.directions[list(COMPONENTS)].T for digit in (pairs.a, pairs.b))
    return ((first[:, 0] * second[:, 0] > 0) * 2 + (first[:, 1] * second[:, 1] > 0)).astype(np.int64)


class Narrow:
    """Blocks of one to three hidden units for labels that are not linearly separable: capacity helps."""

    def recipe(self, draws: NDArray[np.float64]) -> HostRecipe:
        """Return the host of 24 uniform numbers."""
        return HostRecipe(
            is_linear=True, hidden=(1 + int(draws[0] * 3), 1 + int(draws[1] * 3)), labels=signs, classes=4
        )


NARROW = Narrow()
