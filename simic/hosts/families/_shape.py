"""A shape: hosts of one trunk of a size of its own, whose causes of trouble are those of a region or of all at once.

Most networks that people train have one or two causes of trouble, and with all of them at once hardly any network
learns enough to memorise wrong labels. So three hosts in four have the causes of one region.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from simic.hosts.batched.trunk import Trunk
from simic.hosts.families._region import Region
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
_REGIONS = (_ALL, _ALL, _ALL, FEW, HEALTHY, MIXED, NARROW, NOISY, PACED, SCALED, SELECT, SKEWED, STARTED)
"""Regions with equal shares of the hosts."""
_DISTRACTION = (0.0, 2.0)
"""Range of the factor of the second image; above 1 counts as 1, so half of the hosts see it whole."""
_REGION = 19
"""Which of the host's uniform numbers decides its region; a region reads the ones before."""


@dataclass(frozen=True)
class Shape:
    """A family of one trunk."""

    trunk: type[Trunk]

    def recipe(self, draws: NDArray[np.float64]) -> HostRecipe:
        region = _REGIONS[int(draws[_REGION] * len(_REGIONS))]
        drawn = region._replace(distraction=_DISTRACTION).recipe(draws)
        return drawn._replace(
            label_noise=max(0.0, drawn.label_noise),
            decay=max(0.0, drawn.decay),
            column_spread=max(0.0, drawn.column_spread),
            imbalance=max(0.0, drawn.imbalance),
            distraction=min(1.0, drawn.distraction),
        )
