"""A region: hosts whose causes of trouble are drawn from ranges, so that no two hosts are alike.

A family such as ``cap`` is a fingerprint: its hosts are nearly equal, and one epoch tells it from the others. Regions
overlap, so what a host needs has to be concluded from what it shows.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum
from statistics import NormalDist
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from simic.hosts.families._ranges import Range, between, log_between, whole
from simic.hosts.interfaces import HostRecipe, Pairs

__all__ = ["Draw", "Region"]

_ALL_SAMPLES: Range = (512, 512)
_NONE: Range = (0.0, 0.0)
_NEARLY_NONE = 1e-12
_BLOCKS: tuple[tuple[int, ...], ...] = ((0,), (1,), (0, 1))
"""Blocks whose output is scaled."""


class Draw(IntEnum):
    """Which of the host's uniform numbers decides what; each has its own, so a new cause moves no other."""

    STEM = 0
    HIDDEN_1 = 1
    HIDDEN_2 = 2
    TASK = 3
    TASK_DETAIL = 4
    SAMPLES = 5
    LABEL_NOISE = 6
    IS_SCALED = 7
    GAIN_BLOCKS = 8
    GAIN_SPREAD = 9
    GAIN_LEVEL = 10
    RATE = 11
    DECAY = 12
    COLUMNS = 13
    IMBALANCE = 14
    STEM_SCALE = 15
    HEAD_SCALE = 18
    REGION = 19
    """Read by ``Shape``, which draws the region."""
    DISTRACTION = 20


class Region(NamedTuple):
    """Ranges of causes; the defaults are those of a healthy host."""

    hidden: Range = (10, 16)
    """Hidden units of each block, uniform whole numbers."""
    linear: float = 0.25
    """Share of hosts without a ReLU behind the stem."""
    samples: Range = _ALL_SAMPLES
    """Training samples, log-uniform."""
    label_noise: Range = _NONE
    """Share of wrong training labels, uniform."""
    scaled: float = 0.0
    """Share of hosts whose state is scaled per sample, behind block 1, block 2 or both in equal parts."""
    gain_spread: Range = _NONE
    """Standard deviation of that scale's logarithm, uniform."""
    gain_level: Range = _NONE
    """Mean of that scale's logarithm over all scaled blocks together, uniform."""
    selecting: float = 0.0
    """Share of hosts in which the selector takes part in the label."""
    selected: Range = (1.0, 1.0)
    """Share of pairs in which the selector decides; in the others the label is that of a."""
    products: float = 0.0
    """Share of hosts with four classes: the signs of two products, each of a direction of a and one of b."""
    rate: Range = (0.8, 1.25)
    """Factor of the learning rate, log-uniform."""
    decay: Range = _NONE
    """Weight decay, uniform."""
    layer_scales: Range = (1.0, 1.0)
    """Factor of the initial weights of each layer, log-uniform."""
    column_spread: Range = _NONE
    """Spread of the logarithm of the features' factors, uniform."""
    imbalance: Range = _NONE
    """Imbalance of the training images, uniform."""
    distraction: Range = (1.0, 1.0)
    """Factor of the second image where it decides no label, uniform."""

    def recipe(self, draws: NDArray[np.float64]) -> HostRecipe:
        blocks = _BLOCKS[whole((0, len(_BLOCKS) - 1), draws[Draw.GAIN_BLOCKS])]
        is_scaled = bool(draws[Draw.IS_SCALED] < self.scaled)
        task, detail = float(draws[Draw.TASK]), float(draws[Draw.TASK_DETAIL])
        labels: Callable[[Pairs], NDArray[np.int64]] = _Selected(0.0)
        distraction = between(self.distraction, draws[Draw.DISTRACTION])
        if task < self.products:
            labels, distraction = _Products(detail * np.pi / 2), 1.0
        elif task < self.products + self.selecting:
            labels, distraction = _Selected(between(self.selected, detail)), 1.0
        scales = [log_between(self.layer_scales, draw) for draw in draws[Draw.STEM_SCALE : Draw.HEAD_SCALE + 1]]
        return HostRecipe(
            is_linear=bool(draws[Draw.STEM] < self.linear),
            hidden=(whole(self.hidden, draws[Draw.HIDDEN_1]), whole(self.hidden, draws[Draw.HIDDEN_2])),
            labels=labels,
            samples=int(log_between(self.samples, draws[Draw.SAMPLES])),
            label_noise=between(self.label_noise, draws[Draw.LABEL_NOISE]),
            classes=4 if task < self.products else 10,
            gain_blocks=blocks if is_scaled else (),
            gain_level=between(self.gain_level, draws[Draw.GAIN_LEVEL]) / len(blocks) if is_scaled else 0.0,
            gain_spread=between(self.gain_spread, draws[Draw.GAIN_SPREAD]) if is_scaled else 0.0,
            rate=log_between(self.rate, draws[Draw.RATE]),
            decay=between(self.decay, draws[Draw.DECAY]),
            layer_scales=(scales[0], scales[1], scales[2], scales[3]),
            column_spread=between(self.column_spread, draws[Draw.COLUMNS]),
            imbalance=between(self.imbalance, draws[Draw.IMBALANCE]),
            distraction=distraction,
        )


@dataclass(frozen=True)
class _Selected:
    """The label is that of b if the selector is set and b lies low enough on the first direction, else that of a."""

    share: float
    """Share of digits that lie low enough, if their positions are normal; 0 is none, 1 is all."""

    def __call__(self, pairs: Pairs) -> NDArray[np.int64]:
        limit = NormalDist().inv_cdf(min(max(self.share, _NEARLY_NONE), 1.0 - _NEARLY_NONE))
        is_low = pairs.b @ pairs.directions[0] < limit
        labels: NDArray[np.int64] = np.where(pairs.selector & is_low, pairs.label_b, pairs.label_a)
        return labels


@dataclass(frozen=True)
class _Products:
    """Four classes; the angle turns both directions in the plane of two neighbours, so tasks pass into each other."""

    angle: float
    """Radians from 0 to pi / 2: from the first and third principal direction to the third and fourth."""

    def __call__(self, pairs: Pairs) -> NDArray[np.int64]:
        cos, sin = np.cos(self.angle), np.sin(self.angle)
        one, two, three = pairs.directions[[0, 2, 3]]
        turned = np.stack([cos * one + sin * two, cos * two + sin * three])
        u, v = (digit @ turned.T for digit in (pairs.a, pairs.b))
        labels: NDArray[np.int64] = ((u[:, 0] * v[:, 0] > 0) * 2 + (u[:, 1] * v[:, 1] > 0)).astype(np.int64)
        return labels
