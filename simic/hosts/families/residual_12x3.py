"""``residual_12x3``: 12 features, 3 residual blocks."""

from __future__ import annotations

from simic.hosts.families._shape import Shape
from simic.hosts.trunks.mlp import mlp

__all__ = ["FAMILY"]

FAMILY = Shape(mlp(width=12, blocks=3))
