"""``widen``: new features beside those of a layer, read by the layers that read it."""

from __future__ import annotations

from collections.abc import Callable
from math import prod

from torch import Tensor, cat, split, zeros_like
from torch.nn.functional import (
    adaptive_avg_pool1d,
    adaptive_avg_pool2d,
    conv1d,
    conv2d,
    linear,
)

from simic.hosts.interfaces import Blueprint, Reader, Site

__all__ = ["BLUEPRINT", "Widen"]

_KERNEL = 3
_POOL: dict[int, Callable[..., Tensor]] = {1: adaptive_avg_pool1d, 2: adaptive_avg_pool2d}
_CONVOLUTION: dict[int, Callable[..., Tensor]] = {1: conv1d, 2: conv2d}


def _units(width: int) -> int:
    return max(8, width // 2)


class Widen(Blueprint):
    """U new features f = relu(W x + w) of the layer's input x, and to every reader's output the addition V f.

    W is a 3x3 convolution with the stride of the layer on maps, a matrix per position on sequences, and a matrix over
    all of x where the layer gives vectors. V is what the reader would hold for U more input features: the host then
    computes what a host with a wider layer computes. V is zero at birth (Net2Net: Chen et al. 2016, arXiv:1511.05641;
    zero outgoing weights: Evci et al. 2022, arXiv:2201.05125, section 3).
    """

    is_widening = True

    def suits(self, site: Site, /) -> bool:
        return len(site.readers) > 0

    def parameters(self, site: Site, /) -> int:
        return sum(_sizes(site))

    def birth(self, normals: Tensor, site: Site, /) -> Tensor:
        """Return initial parameters: W is random (He et al. 2015, arXiv:1502.01852), all others are zero."""
        count = _sizes(site)[0]
        return cat([normals[:, :count] * (2.0 / _fan_in(site)) ** 0.5, zeros_like(normals[:, count:])], dim=1)

    def delta(self, _parameters: Tensor, h: Tensor, _noise: Tensor | None, /) -> Tensor:
        """Return 0: the layer's own output does not change."""
        return zeros_like(h)

    def additions(self, parameters: Tensor, x: Tensor, site: Site, /) -> list[Tensor]:
        weight, bias, *outgoing = split(parameters, _sizes(site))
        features = _features(weight, bias, x, site)
        return [_read(features, values, reader) for values, reader in zip(outgoing, site.readers, strict=True)]


def _fan_in(site: Site) -> int:
    """Return how many numbers of the layer's input one new feature reads."""
    if not site.space:
        return prod(site.source)
    return site.source[-1] * (_KERNEL**2 if len(site.space) == 2 else 1)


def _taps(reader: Reader) -> int:
    """Return how many positions a reader combines into one."""
    return prod(reader.space) if reader.is_flat else prod(window.size for window in reader.windows)


def _sizes(site: Site) -> list[int]:
    """Return the numbers of parameters of W, w and each V."""
    units = _units(site.width)
    return [units * _fan_in(site), units, *(units * reader.width * _taps(reader) for reader in site.readers)]


def _features(weight: Tensor, bias: Tensor, x: Tensor, site: Site) -> Tensor:
    """Return new features [B, U, *space] from the layer's input x [B, *source]."""
    weight = weight.view(len(bias), -1)
    if not site.space:
        return linear(x.flatten(1), weight, bias).relu()
    if len(site.space) == 1:
        return _averaged(linear(x, weight, bias).relu().movedim(-1, 1), site.space)
    kernel = weight.view(len(bias), -1, _KERNEL, _KERNEL)
    rows, columns = (max(1, before // after) for before, after in zip(site.source, site.space, strict=False))
    return _averaged(conv2d(x.movedim(-1, 1), kernel, bias, (rows, columns), _KERNEL // 2).relu(), site.space)


def _read(features: Tensor, values: Tensor, reader: Reader) -> Tensor:
    """Return V f, [B, *positions, width], from features [B, U, *space]."""
    features = _averaged(features, reader.space)
    weight = values.view(reader.width, -1)
    if reader.is_flat:
        return linear(features.flatten(1), weight)
    if not reader.windows:
        return linear(features.movedim(1, -1), weight)
    sizes, strides, paddings, dilations = zip(*reader.windows, strict=True)
    weight = weight.view(reader.width, -1, *sizes)
    return _CONVOLUTION[len(sizes)](features, weight, None, strides, paddings, dilations).movedim(1, -1)


def _averaged(features: Tensor, space: tuple[int, ...]) -> Tensor:
    """Return [B, U, *space]: means over positions, repeated where the two have different axes."""
    here = tuple(features.shape[2:])
    if here == space:
        return features
    if len(here) == len(space):
        return _POOL[len(space)](features, space)
    if prod(here) == prod(space):
        return features.reshape(*features.shape[:2], *space)
    mean = features if not here else features.flatten(2).mean(dim=2)
    return mean.view(*mean.shape, *[1] * len(space)).expand(*mean.shape, *space)


BLUEPRINT = Widen()
