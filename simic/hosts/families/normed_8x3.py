"""``normed_8x3``: 8 features, 3 blocks with batch normalisation and without residual connections."""

from __future__ import annotations

from simic.hosts.families._shape import Shape
from simic.hosts.trunks.normed import normed

__all__ = ["FAMILY"]

FAMILY = Shape(normed(width=8, blocks=3))
