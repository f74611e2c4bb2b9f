"""``region_few``: 60 to 200 samples with hardly a wrong label."""

from __future__ import annotations

from simic.hosts.families._region import Region

__all__ = ["FAMILY"]

FAMILY = Region(hidden=(4, 16), samples=(60, 200), label_noise=(0.0, 0.1))
