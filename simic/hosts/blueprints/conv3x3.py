"""``conv3x3``: a residual convolution; the blueprint that sees a position's neighbours with all their features."""

from __future__ import annotations

from torch import Tensor

from simic.hosts.blueprints._layers import Convolutional
from simic.hosts.stacked.maps import KERNEL

__all__ = ["BLUEPRINT", "Conv3x3"]


class Conv3x3(Convolutional):
    """W is a 3x3 convolution with as many hidden channels as features."""

    def inputs(self, width: int, /) -> int:
        """See ``Convolutional``."""
        return width

    def kernel(self, values: Tensor, width: int, /) -> Tensor:
        """See ``Convolutional``."""
        return values.view(-1, KERNEL, KERNEL, width, width)


BLUEPRINT = Conv3x3()
