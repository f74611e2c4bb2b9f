"""Causes of trouble that families of modules share: drawn from the key, each uniform number for one cause."""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from simic.hosts import rng
from simic.hosts.batched.data import with_wrong_labels
from simic.hosts.custom import Samples
from simic.hosts.families._ranges import Range, between, log_between, whole
from simic.hosts.interfaces import DataSplit
from simic.hosts.rng import Purpose

__all__ = ["EVALUATED", "Causes", "Draw", "Ranges", "scaled", "splits"]

_DRAWS = 24
EVALUATED = 200
"""Samples of validation, and of test."""
DrawSplit = Callable[[DataSplit, int], tuple[NDArray[Any], NDArray[np.int64]]]
"""(split, n) -> inputs [n, ...] and true labels [n]."""


class Draw(IntEnum):
    """Which of the host's uniform numbers decides what; each has its own, so a new cause moves no other."""

    HIDDEN_1 = 0
    HIDDEN_2 = 1
    SAMPLES = 2
    LABEL_NOISE = 3
    RATE = 4
    SCALE_SPREAD = 5
    TASK = 6
    TASK_NOISE = 7
    TASK_DETAIL = 8


class Causes(NamedTuple):
    """The causes of one host."""

    hidden: tuple[int, int]
    """Hidden units of the blocks."""
    samples: int
    """Training samples."""
    label_noise: float
    """Share of wrong training labels."""
    rate: float
    """Factor of the learning rate."""
    scale_spread: float
    """Standard deviation of the logarithm of a factor that every sample has."""
    draws: NDArray[np.float64]
    """All uniform numbers of the host, see ``Draw``."""


class Ranges(NamedTuple):
    """Ranges of the causes of a family."""

    hidden: Range = (1, 12)
    """Uniform whole numbers."""
    samples: Range = (72, 240)
    """Log-uniform."""
    label_noise: Range = (-0.5, 0.5)
    """Uniform; negative numbers count as 0, so half of the hosts have no wrong label."""
    rate: Range = (0.25, 4.0)
    """Log-uniform."""
    scale_spread: Range = (-1.2, 1.2)
    """Uniform; negative numbers count as 0."""

    def causes(self, key: int) -> Causes:
        """Return the causes of the host of a key."""
        draws = rng.uniforms(rng.streams(key, Purpose.RECIPE), _DRAWS)[0]
        return Causes(
            hidden=(whole(self.hidden, draws[Draw.HIDDEN_1]), whole(self.hidden, draws[Draw.HIDDEN_2])),
            samples=int(log_between(self.samples, draws[Draw.SAMPLES])),
            label_noise=max(0.0, between(self.label_noise, draws[Draw.LABEL_NOISE])),
            rate=log_between(self.rate, draws[Draw.RATE]),
            scale_spread=max(0.0, between(self.scale_spread, draws[Draw.SCALE_SPREAD])),
            draws=draws,
        )


def splits(key: int, causes: Causes, classes: int, draw: DrawSplit) -> tuple[Samples, Samples, Samples]:
    """Return the samples of a host for training, validation and test; only training labels are wrong."""
    inputs, labels = draw(DataSplit.TRAIN, causes.samples)
    return (
        _samples(inputs, with_wrong_labels(key, labels, causes.label_noise, classes)),
        _samples(*draw(DataSplit.VALIDATION, EVALUATED)),
        _samples(*draw(DataSplit.TEST, EVALUATED)),
    )


def _samples(inputs: NDArray[Any], labels: NDArray[np.int64]) -> Samples:
    return Samples(torch.from_numpy(inputs), torch.from_numpy(labels))


def scaled(key: int, causes: Causes, part: DataSplit, inputs: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return inputs [n, ...], each multiplied by the factor of its sample."""
    if causes.scale_spread == 0.0:
        return inputs
    normals = rng.normals(rng.streams(key, Purpose.GAIN, part), len(inputs))[0]
    factors: NDArray[np.float32] = np.exp(causes.scale_spread * normals).astype(np.float32)
    return inputs * factors.reshape(-1, *[1] * (inputs.ndim - 1))
