"""``plain_10x1``: 10 features, 1 block without residual connections."""

from __future__ import annotations

from simic.hosts.families._shape import Shape
from simic.hosts.trunks.plain import plain

__all__ = ["FAMILY"]

FAMILY = Shape(plain(width=10, blocks=1))
