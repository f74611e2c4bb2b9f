"""``depthwise``: a 3x3 convolution per feature, then a mix of the features."""

from __future__ import annotations

from torch import Tensor, diag_embed

from simic.hosts.batched.conv import KERNEL
from simic.hosts.blueprints._layers import Convolutional

__all__ = ["BLUEPRINT", "Depthwise"]


class Depthwise(Convolutional):
    """W is a 3x3 kernel per feature (Howard et al. 2017, arXiv:1704.04861)."""

    def inputs(self, _width: int, /) -> int:
        return 1

    def kernel(self, values: Tensor, width: int, /) -> Tensor:
        # Few features: a full kernel with zeros off its diagonal is faster than nine shifted products.
        return diag_embed(values.view(-1, KERNEL, KERNEL, width))


BLUEPRINT = Depthwise()
