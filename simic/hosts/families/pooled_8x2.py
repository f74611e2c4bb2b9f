"""``pooled_8x2``: 4x4 maps of 8 channels, 2 blocks without residual connections; the head reads their mean."""

from __future__ import annotations

from simic.hosts.families._shape import Shape
from simic.hosts.trunks.plain_cnn import plain_cnn

__all__ = ["FAMILY"]

FAMILY = Shape(plain_cnn(channels=8, blocks=2, is_pooled=True))
