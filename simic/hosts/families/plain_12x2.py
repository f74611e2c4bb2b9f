"""``plain_12x2``: 12 features, 2 blocks without residual connections."""

from __future__ import annotations

from simic.hosts.families._shape import Shape
from simic.hosts.trunks.plain import plain

__all__ = ["FAMILY"]

FAMILY = Shape(plain(width=12, blocks=2))
