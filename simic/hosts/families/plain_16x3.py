"""``plain_16x3``: 16 features, 3 blocks without residual connections."""

from __future__ import annotations

from simic.hosts.families._shape import Shape
from simic.hosts.trunks.plain import plain

__all__ = ["FAMILY"]

FAMILY = Shape(plain(width=16, blocks=3))
