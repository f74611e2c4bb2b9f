"""``noisy``: few samples, many of them wrongly labelled; growth overfits, dropout helps."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from simic.hosts.interfaces import HostRecipe, Pairs

__all__ = ["FAMILY", "Noisy"]


def _first_digit(pairs: Pairs) -> NDArray[np.int64]:
    return pairs.label_a


class Noisy:
    """The label is that of a; there are 120 to 179 samples, 30 to 40 per cent with a wrong label."""

    def recipe(self, draws: NDArray[np.float64]) -> HostRecipe:
        return HostRecipe(
            is_linear=False,
            hidden=(12 + int(draws[0] * 5), 12 + int(draws[1] * 5)),
            labels=_first_digit,
            samples=120 + int(draws[2] * 60),
            label_noise=0.3 + 0.1 * float(draws[3]),
        )


FAMILY = Noisy()
