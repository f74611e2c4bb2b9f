"""``plain_4x1``: 4 features, 1 block without residual connections."""

from __future__ import annotations

from simic.hosts.families._shape import Shape
from simic.hosts.trunks.plain import plain

__all__ = ["FAMILY"]

FAMILY = Shape(plain(width=4, blocks=1))
