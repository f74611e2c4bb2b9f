"""``region_narrow``: one to four hidden units; most hosts have the labels of products, as in ``cap``."""

from __future__ import annotations

from simic.hosts.families._region import Region

__all__ = ["FAMILY"]

FAMILY = Region(hidden=(1, 4), linear=0.95, products=0.8, samples=(400, 512), label_noise=(0.0, 0.05))
