"""``region_mixed``: every cause of the other regions at once, each from nothing to its worst."""

from __future__ import annotations

from simic.hosts.families._region import Region

__all__ = ["FAMILY"]

FAMILY = Region(
    hidden=(1, 16),
    linear=0.5,
    samples=(60, 512),
    label_noise=(0.0, 0.5),
    scaled=0.5,
    gain_spread=(0.0, 1.2),
    gain_level=(0.0, 2.4),
    selecting=1 / 3,
    selected=(0.0, 1.0),
    products=1 / 3,
    rate=(0.4, 2.5),
    decay=(0.0, 0.1),
    layer_scales=(0.5, 2.0),
    column_spread=(0.0, 1.5),
    imbalance=(0.0, 3.0),
)
