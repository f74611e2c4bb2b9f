"""``series_conv``: one-dimensional convolutions on generated series."""

from __future__ import annotations

from functools import partial

from torch import Tensor, nn

from simic.contracts.state import LayerKind
from simic.hosts.blueprints import STANDARD
from simic.hosts.custom import Layer, ModuleFamily, ModuleHost
from simic.hosts.families._causes import Ranges, splits
from simic.hosts.families._networks import he_normal
from simic.hosts.families._series import CLASSES, series

__all__ = ["FAMILY", "SeriesConv"]

_WIDTH = 8
_KERNEL = 5


class _Convolution(nn.Module):
    """A convolution over time, then a ReLU; a linear map of windows costs less than ``Conv1d`` at this size."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.linear = nn.Linear(_KERNEL * inputs, outputs)
        self.stride = stride

    def forward(self, h: Tensor) -> Tensor:
        """[B, T, D] -> [B, T / stride, outputs]"""
        padded = nn.functional.pad(h, (0, 0, _KERNEL // 2, _KERNEL // 2))
        out: Tensor = self.linear(padded.unfold(1, _KERNEL, self.stride).flatten(2))
        return out.relu()


class _Network(nn.Module):
    """A stem and two blocks, a mean over time and a linear classifier; stem and first block halve the length."""

    def __init__(self, hidden: tuple[int, int]) -> None:
        super().__init__()
        self.stem = _Convolution(1, _WIDTH, stride=2)
        self.block_1, self.block_2 = _block(hidden[0], stride=2), _block(hidden[1], stride=1)
        self.head = nn.Linear(_WIDTH, CLASSES)
        he_normal(self)

    def forward(self, values: Tensor) -> Tensor:
        """[B, T] -> [B, classes]"""
        h = self.block_2(self.block_1(self.stem(values.unsqueeze(2))))
        logits: Tensor = self.head(h.mean(dim=1))
        return logits


def _block(hidden: int, stride: int) -> nn.Module:
    """Return a block through which ``hidden`` channels pass."""
    return nn.Sequential(_Convolution(_WIDTH, hidden, stride), nn.Linear(hidden, _WIDTH), nn.ReLU())


class SeriesConv(ModuleFamily):
    """Series with trouble drawn from ranges; 1 to 12 channels pass through each block."""

    blueprints = (*STANDARD, "attention")
    ranges = Ranges()

    def host(self, key: int) -> ModuleHost:
        causes = self.ranges.causes(key)
        return ModuleHost(
            _Network(causes.hidden),
            (
                Layer("stem", LayerKind.STEM, has_slot=True),
                Layer("block_1", has_slot=True, hidden_width=causes.hidden[0]),
                Layer("block_2", has_slot=True, hidden_width=causes.hidden[1]),
                Layer("head", LayerKind.HEAD),
            ),
            *splits(key, causes, CLASSES, partial(series, key, causes)),
            batch=24,
            learning_rate=0.05 * causes.rate,
        )


FAMILY = SeriesConv()
