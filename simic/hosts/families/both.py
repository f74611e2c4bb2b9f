"""``both``: the selector says which digit counts *and* the state's size runs wild; wants a gate and a norm."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from simic.hosts.families.gain import FAMILY as GAIN
from simic.hosts.families.select import FAMILY as SELECT
from simic.hosts.protocols import HostRecipe

__all__ = ["FAMILY", "Both"]

_LEVEL = 2.0
"""Below ``gain``'s: behind a linear stem, more makes hosts diverge that nobody touched."""


class Both:
    """``select``'s labels and narrow blocks under ``gain``'s scale."""

    def recipe(self, draws: NDArray[np.float64]) -> HostRecipe:
        """See ``HostFamily``."""
        gain = GAIN.recipe(draws)
        return SELECT.recipe(draws)._replace(
            gain_blocks=gain.gain_blocks, gain_level=_LEVEL, gain_spread=gain.gain_spread
        )


FAMILY = Both()
