"""``region_paced``: a learning rate from a fifth to four times the usual one, and some weight decay."""

from __future__ import annotations

from simic.hosts.families._region import Region

__all__ = ["FAMILY"]

FAMILY = Region(hidden=(4, 16), rate=(0.2, 4.0), decay=(0.0, 0.2), samples=(128, 512))
