"""``residual_36x2``: 36 features, 2 residual blocks."""

from __future__ import annotations

from simic.hosts.families._shape import Shape
from simic.hosts.trunks.mlp import mlp

__all__ = ["FAMILY"]

FAMILY = Shape(mlp(width=36, blocks=2))
