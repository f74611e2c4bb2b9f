"""``conv_normed_8x1``: 4x4 maps of 8 channels, 1 block with batch normalisation; the head reads all of them."""

from __future__ import annotations

from simic.hosts.families._shape import Shape
from simic.hosts.trunks.normed_cnn import normed_cnn

__all__ = ["FAMILY"]

FAMILY = Shape(normed_cnn(channels=8, blocks=1))
