"""A shape: hosts of one trunk of a size of its own, with all causes of trouble drawn from wide ranges."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from simic.hosts.batched.trunk import Trunk
from simic.hosts.families._region import Region
from simic.hosts.interfaces import HostRecipe

__all__ = ["Shape"]

_CAUSES = Region(
    hidden=(1, 16),
    linear=0.2,
    samples=(60, 512),
    label_noise=(-0.5, 0.5),
    scaled=0.3,
    gain_spread=(0.0, 1.2),
    gain_level=(0.0, 2.0),
    selecting=0.15,
    selected=(0.0, 1.0),
    products=0.15,
    rate=(0.1, 2.5),
    decay=(-0.1, 0.1),
    layer_scales=(0.5, 2.0),
    column_spread=(-1.5, 1.5),
    imbalance=(-3.0, 3.0),
)
"""Ranges that begin below 0 leave the cause out in half of the hosts."""


@dataclass(frozen=True)
class Shape:
    """A family of one trunk."""

    trunk: type[Trunk]

    def recipe(self, draws: NDArray[np.float64]) -> HostRecipe:
        drawn = _CAUSES.recipe(draws)
        return drawn._replace(
            label_noise=max(0.0, drawn.label_noise),
            decay=max(0.0, drawn.decay),
            column_spread=max(0.0, drawn.column_spread),
            imbalance=max(0.0, drawn.imbalance),
        )
