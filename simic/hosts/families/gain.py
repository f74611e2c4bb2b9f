"""``gain``: the hidden state's scale varies widely between samples; a norm after that block helps."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from simic.hosts.interfaces import HostRecipe, Pairs

__all__ = ["FAMILY", "Gain"]


def _first_digit(pairs: Pairs) -> NDArray[np.int64]:
    return pairs.label_a


class Gain:
    """The label is that of a; one block's output is multiplied by exp(2.4 + s n), n normal per sample."""

    def recipe(self, draws: NDArray[np.float64]) -> HostRecipe:
        return HostRecipe(
            is_linear=False,
            hidden=(12 + int(draws[0] * 5), 12 + int(draws[1] * 5)),
            labels=_first_digit,
            gain_blocks=(int(draws[2] * 2),),
            gain_level=2.4,
            gain_spread=0.7 + 0.4 * float(draws[3]),
        )


FAMILY = Gain()
