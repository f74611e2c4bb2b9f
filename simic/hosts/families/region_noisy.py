"""``region_noisy``: from some to half of the labels wrong, and few to all samples; growth may overfit."""

from __future__ import annotations

from simic.hosts.families._region import Region

__all__ = ["FAMILY"]

FAMILY = Region(hidden=(4, 16), label_noise=(0.15, 0.5), samples=(90, 512))
