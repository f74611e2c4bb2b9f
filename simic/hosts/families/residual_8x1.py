"""``residual_8x1``: 8 features, 1 residual block."""

from __future__ import annotations

from simic.hosts.families._shape import Shape
from simic.hosts.trunks.mlp import mlp

__all__ = ["FAMILY"]

FAMILY = Shape(mlp(width=8, blocks=1))
