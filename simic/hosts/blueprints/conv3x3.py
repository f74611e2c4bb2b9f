"""``conv3x3``: a residual 3x3 convolution over all features."""

from __future__ import annotations

from torch import Tensor

from simic.hosts.batched.conv import KERNEL
from simic.hosts.blueprints._layers import Convolutional

__all__ = ["BLUEPRINT", "Conv3x3"]


class Conv3x3(Convolutional):
    """W is a 3x3 convolution with as many hidden channels as features."""

    def inputs(self, width: int, /) -> int:
        return width

    def kernel(self, values: Tensor, width: int, /) -> Tensor:
        return values.view(-1, KERNEL, KERNEL, width, width)


BLUEPRINT = Conv3x3()
