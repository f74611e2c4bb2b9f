"""``select``: the selector decides which digit is the label; a multiplicative gate helps."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from simic.hosts.interfaces import HostRecipe, Pairs

__all__ = ["FAMILY", "Select"]


def _selected(pairs: Pairs) -> NDArray[np.int64]:
    return np.where(pairs.selector, pairs.label_b, pairs.label_a)


class Select:
    """The label is that of b if the selector is set, else that of a; few hidden units behind a linear stem."""

    def recipe(self, draws: NDArray[np.float64]) -> HostRecipe:
        return HostRecipe(
            is_linear=True, hidden=(1 + int(draws[0] * 3), 1 + int(draws[1] * 3)), labels=_selected, samples=512
        )


FAMILY = Select()
