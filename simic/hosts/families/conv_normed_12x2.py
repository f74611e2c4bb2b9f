"""``conv_normed_12x2``: 4x4 maps of 12 channels, 2 blocks with batch normalisation; the head reads all of them."""

from __future__ import annotations

from simic.hosts.families._shape import Shape
from simic.hosts.trunks.normed_cnn import normed_cnn

__all__ = ["FAMILY"]

FAMILY = Shape(normed_cnn(channels=12, blocks=2))
