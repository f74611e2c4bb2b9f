"""``region_select``: the selector decides the label of most pairs to all; one to four hidden units."""

from __future__ import annotations

from simic.hosts.families._region import Region

__all__ = ["FAMILY"]

FAMILY = Region(hidden=(1, 4), linear=0.95, selecting=1.0, selected=(0.8, 1.0), samples=(400, 512))
