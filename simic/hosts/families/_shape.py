"""A shape: hosts of one trunk of a size of its own, with the causes of trouble of one region or all at once.

Most networks that people train have one or two causes of trouble, and with all of them at once hardly any network
learns enough to memorise wrong labels. So twelve hosts in fifteen have the causes of one region, four of them wrong
labels. A cause that a trunk has no place for has no effect: hidden units in plain blocks, and the scale behind a second
block where there is one.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from simic.hosts.batched.trunk import Trunk
from simic.hosts.families._region import Draw, Region
from simic.hosts.families.region_few import FAMILY as FEW
from simic.hosts.families.region_healthy import FAMILY as HEALTHY
from simic.hosts.families.region_mixed import FAMILY as MIXED
from simic.hosts.families.region_narrow import FAMILY as NARROW
from simic.hosts.families.region_noisy import FAMILY as NOISY
from simic.hosts.families.region_paced import FAMILY as PACED
from simic.hosts.families.region_scaled import FAMILY as SCALED
from simic.hosts.families.region_select import FAMILY as SELECT
from simic.hosts.families.region_skewed import FAMILY as SKEWED
from simic.hosts.families.region_started import FAMILY as STARTED
from simic.hosts.interfaces import HostRecipe

__all__ = ["Shape"]

_ALL = Region(
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
"""Wide ranges of all causes. Those that begin below 0 leave the cause out in half of the hosts."""
_REGIONS = (_ALL, _ALL, FEW, HEALTHY, MIXED, NARROW, *[NOISY] * 4, PACED, SCALED, SELECT, SKEWED, STARTED)
"""Regions with equal shares of the hosts. Dropout pays on one kind of network with wrong labels and does great harm on
another, so a policy needs many of them to learn which is which."""
_DISTRACTION = (-1.0, 1.5)
"""Range of the factor of the second image; below 0 counts as 0 and above 1 as 1."""


@dataclass(frozen=True)
class Shape:
    """A family of one trunk."""

    trunk: type[Trunk]

    def recipe(self, draws: NDArray[np.float64]) -> HostRecipe:
        region = _REGIONS[int(draws[Draw.REGION] * len(_REGIONS))]
        drawn = region._replace(distraction=_DISTRACTION).recipe(draws)
        return drawn._replace(
            label_noise=max(0.0, drawn.label_noise),
            decay=max(0.0, drawn.decay),
            column_spread=max(0.0, drawn.column_spread),
            imbalance=max(0.0, drawn.imbalance),
            distraction=min(1.0, max(0.0, drawn.distraction)),
        )
