"""``region_skewed``: features of unequal scale, and some classes far rarer than others."""

from __future__ import annotations

from simic.hosts.families._region import Region

__all__ = ["FAMILY"]

FAMILY = Region(column_spread=(0.5, 2.3), imbalance=(0.0, 4.0), hidden=(4, 16), samples=(90, 512))
