"""``normed_48x2``: 48 features, 2 blocks with batch normalisation and without residual connections."""

from __future__ import annotations

from simic.hosts.families._shape import Shape
from simic.hosts.trunks.normed import normed

__all__ = ["FAMILY"]

FAMILY = Shape(normed(width=48, blocks=2))
