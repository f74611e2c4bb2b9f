"""``plain_64x1``: 64 features, 1 block without residual connections."""

from __future__ import annotations

from simic.hosts.families._shape import Shape
from simic.hosts.trunks.plain import plain

__all__ = ["FAMILY"]

FAMILY = Shape(plain(width=64, blocks=1))
