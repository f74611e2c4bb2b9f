"""``cnn_plain``: a convolutional network without residual connections on scikit-learn's digits."""

from __future__ import annotations

from functools import partial

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn

from simic.contracts.state import LayerKind
from simic.hosts import rng
from simic.hosts.batched.data import digit_pool
from simic.hosts.blueprints import STANDARD
from simic.hosts.custom import Layer, ModuleFamily, ModuleHost
from simic.hosts.families._causes import Causes, Ranges, scaled, splits
from simic.hosts.families._networks import he_normal
from simic.hosts.interfaces import DataSplit
from simic.hosts.rng import Purpose

__all__ = ["FAMILY", "CnnPlain"]

_CLASSES = 10
_WIDTH = 8


class _Network(nn.Module):
    """Three plain stages of 4x4, 2x2 and 2x2 positions, and a linear classifier of all of them."""

    def __init__(self, hidden: tuple[int, int]) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(1, _WIDTH, 3, stride=2, padding=1), nn.ReLU())
        self.block_1, self.block_2 = _block(hidden[0], stride=2), _block(hidden[1], stride=1)
        self.head = nn.Linear(_WIDTH * 4, _CLASSES)
        he_normal(self)

    def forward(self, images: Tensor) -> Tensor:
        """[B, 8, 8] -> [B, classes]"""
        h = self.block_2(self.block_1(self.stem(images.unsqueeze(1))))
        logits: Tensor = self.head(h.flatten(1))
        return logits


def _block(hidden: int, stride: int) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(_WIDTH, hidden, 3, stride=stride, padding=1), nn.ReLU(), nn.Conv2d(hidden, _WIDTH, 1), nn.ReLU()
    )


class CnnPlain(ModuleFamily):
    """Digits with trouble drawn from ranges; 1 to 12 channels pass through each block."""

    blueprints = (*STANDARD, "conv3x3", "depthwise")
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
            *splits(key, causes, _CLASSES, partial(_digits, key, causes)),
            batch=24,
            learning_rate=0.03 * causes.rate,
        )


def _digits(key: int, causes: Causes, part: DataSplit, count: int) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Return images [n, 8, 8] of the split's pool and their labels [n]; every host has its own."""
    pool = digit_pool(part)
    rows = rng.permutations(rng.streams(key, Purpose.SUBSET, part), len(pool.labels))[0, :count]
    return scaled(key, causes, part, pool.images[rows]), pool.labels[rows]


FAMILY = CnnPlain()
