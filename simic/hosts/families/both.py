"""``both``: the selector decides the digit *and* the state's scale varies widely; a gate and a norm help."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from simic.hosts.families.gain import FAMILY as GAIN
from simic.hosts.families.select import FAMILY as SELECT
from simic.hosts.interfaces import HostRecipe

__all__ = ["FAMILY", "Both"]

_LEVEL = 2.0
"""Below the level of ``gain``: behind a linear stem, a higher one makes hosts diverge even without growth."""


class Both:
    """The labels and narrow blocks of ``select`` under the scale of ``gain``."""

    def recipe(self, draws: NDArray[np.float64]) -> HostRecipe:
        gain = GAIN.recipe(draws)
        return SELECT.recipe(draws)._replace(
            gain_blocks=gain.gain_blocks, gain_level=_LEVEL, gain_spread=gain.gain_spread
        )


FAMILY = Both()
