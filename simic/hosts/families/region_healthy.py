"""``region_healthy``: capacity, samples and right labels; growth has little to give."""

from __future__ import annotations

from simic.hosts.families._region import Region

__all__ = ["FAMILY"]

FAMILY = Region()
