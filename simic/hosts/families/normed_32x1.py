"""``normed_32x1``: 32 features, 1 block with batch normalisation and without residual connections."""

from __future__ import annotations

from simic.hosts.families._shape import Shape
from simic.hosts.trunks.normed import normed

__all__ = ["FAMILY"]

FAMILY = Shape(normed(width=32, blocks=1))
