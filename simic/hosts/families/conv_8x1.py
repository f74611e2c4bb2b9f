"""``conv_8x1``: 4x4 maps of 8 channels, 1 block without residual connections; the head reads all of them."""

from __future__ import annotations

from simic.hosts.families._shape import Shape
from simic.hosts.trunks.plain_cnn import plain_cnn

__all__ = ["FAMILY"]

FAMILY = Shape(plain_cnn(channels=8, blocks=1))
