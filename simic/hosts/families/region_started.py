"""``region_started``: initial weights from a quarter to four times the usual ones, drawn for each layer."""

from __future__ import annotations

from simic.hosts.families._region import Region

__all__ = ["FAMILY"]

FAMILY = Region(layer_scales=(0.25, 4.0), hidden=(4, 16), samples=(256, 512), rate=(0.5, 2.0))
