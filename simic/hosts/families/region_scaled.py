"""``region_scaled``: the state's scale varies little to wildly between samples, behind either block or both."""

from __future__ import annotations

from simic.hosts.families._region import Region

__all__ = ["FAMILY"]

FAMILY = Region(hidden=(6, 16), scaled=1.0, gain_spread=(0.3, 1.2), gain_level=(0.5, 2.4), samples=(256, 512))
