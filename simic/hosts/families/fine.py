"""``fine``: a healthy host with enough capacity and data; no growth pays."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from simic.hosts.interfaces import HostRecipe, Pairs

__all__ = ["FAMILY", "Fine"]


def _first_digit(pairs: Pairs) -> NDArray[np.int64]:
    return pairs.label_a


class Fine:
    """The label is that of a; the blocks are wide, the samples many and clean."""

    def recipe(self, draws: NDArray[np.float64]) -> HostRecipe:
        hidden = (12 + int(draws[0] * 5), 12 + int(draws[1] * 5))
        return HostRecipe(is_linear=False, hidden=hidden, labels=_first_digit)


FAMILY = Fine()
