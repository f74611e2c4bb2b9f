"""``region_select``: the selector decides the label of most pairs to all; one to eight hidden units."""

from __future__ import annotations

from simic.hosts.families._region import Region

__all__ = ["FAMILY"]

FAMILY = Region(hidden=(1, 8), linear=0.85, selecting=1.0, selected=(0.7, 1.0), samples=(320, 512))
