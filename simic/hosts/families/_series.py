"""Generated series of four classes, for families that read sequences.

A host has one of four tasks: to tell frequencies, autoregressive processes of the second order (by the angle of their
poles), motifs at random places, or the order of two motifs. In the last one both orders contain the same motifs.
Shapes: n samples, T steps of time.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from simic.hosts import rng
from simic.hosts.families._causes import Causes, Draw, scaled
from simic.hosts.families._ranges import between, whole
from simic.hosts.interfaces import DataSplit
from simic.hosts.rng import Purpose

__all__ = ["CLASSES", "LENGTH", "series"]

CLASSES = 4
LENGTH = 32
"""T"""
_MOTIF = 6
"""Length of a motif."""
_NOISE = (0.1, 0.9)
"""Standard deviation of the noise that is added."""
_ORDERS = np.array([(0, 1), (1, 0), (0, 2), (2, 0)])
"""[classes, 2]: first and second motif of each class."""
_WARM_UP = 16
"""Steps after which a process is recorded."""

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]


class _Draws:
    """Random numbers of one split of a host; each kind has a stream of its own."""

    def __init__(self, key: int, part: DataSplit, count: int) -> None:
        self._key, self._part, self.count = key, part, count
        self.labels: Integers = rng.integers(self._stream(0), count, CLASSES)[0]
        """[n]"""

    def noise(self) -> Floats:
        """Return standard normal numbers [n, T] for the noise that is added."""
        return self._normals(1, LENGTH)

    def shocks(self) -> Floats:
        """Return standard normal numbers [n, warm-up + T] that drive a process."""
        return self._normals(3, _WARM_UP + LENGTH)

    def uniforms(self, width: int) -> Floats:
        """Return uniform numbers [n, width]."""
        flat: Floats = rng.uniforms(self._stream(2), self.count * width)[0]
        return flat.reshape(self.count, width)

    def _normals(self, word: int, width: int) -> Floats:
        flat: Floats = rng.normals(self._stream(word), self.count * width)[0].astype(np.float64)
        return flat.reshape(self.count, width)

    def _stream(self, word: int) -> NDArray[np.uint64]:
        return rng.streams(self._key, Purpose.SERIES, self._part, word)


def series(key: int, causes: Causes, part: DataSplit, count: int) -> tuple[NDArray[np.float32], Integers]:
    """Return series float32 [n, T] of one split of a host, and their true classes int64 [n]."""
    draws = _Draws(key, part, count)
    task = _TASKS[whole((0, len(_TASKS) - 1), causes.draws[Draw.TASK])]
    noise = between(_NOISE, causes.draws[Draw.TASK_NOISE])
    clean = task(key, float(causes.draws[Draw.TASK_DETAIL]), draws)
    values = (clean + noise * draws.noise()).astype(np.float32)
    return scaled(key, causes, part, values), draws.labels


def _frequencies(_key: int, detail: float, draws: _Draws) -> Floats:
    """Sines with a random phase; neighbouring classes differ by a ratio of 1.2 to 1.6."""
    periods = 1.5 * between((1.2, 1.6), detail) ** draws.labels
    time = np.arange(LENGTH) / LENGTH
    return np.asarray(np.sqrt(2.0) * np.sin(2.0 * np.pi * (periods[:, None] * time + draws.uniforms(1))))


def _processes(_key: int, detail: float, draws: _Draws) -> Floats:
    """Autoregressive processes with poles of radius 0.9 at angles that differ by 0.3 to 0.7 radians, of unit size."""
    angle = 0.3 + between((0.3, 0.7), detail) * draws.labels
    first, second = 1.8 * np.cos(angle), -0.81
    shocks = draws.shocks()
    state = np.zeros((2, draws.count))
    values = np.empty((draws.count, LENGTH + _WARM_UP))
    for step in range(LENGTH + _WARM_UP):
        values[:, step] = first * state[0] + second * state[1] + shocks[:, step]
        state = np.stack([values[:, step], state[0]])
    kept = values[:, _WARM_UP:]
    return np.asarray(kept / np.sqrt((kept * kept).mean(axis=1, keepdims=True)))


def _motifs(key: int, _detail: float, draws: _Draws) -> Floats:
    """One of four motifs at a random place."""
    places = (draws.uniforms(1)[:, 0] * (LENGTH - _MOTIF + 1)).astype(np.int64)
    return _placed(np.zeros((draws.count, LENGTH)), _shapes(key)[draws.labels], places)


def _orders(key: int, _detail: float, draws: _Draws) -> Floats:
    """Two motifs, one in either half."""
    half = LENGTH // 2
    places = (draws.uniforms(2) * (half - _MOTIF + 1)).astype(np.int64)
    first, second = _shapes(key)[_ORDERS[draws.labels].T]
    return _placed(_placed(np.zeros((draws.count, LENGTH)), first, places[:, 0]), second, half + places[:, 1])


_TASKS: tuple[Callable[[int, float, _Draws], Floats], ...] = (_frequencies, _processes, _motifs, _orders)


def _shapes(key: int) -> Floats:
    """Return the motifs of a host, [classes, length]."""
    normals = rng.normals(rng.streams(key, Purpose.SERIES), CLASSES * _MOTIF)[0]
    shapes: Floats = 1.5 * normals.reshape(CLASSES, _MOTIF).astype(np.float64)
    return shapes


def _placed(values: Floats, shapes: Floats, places: Integers) -> Floats:
    """Add shapes [n, length] to values [n, T] at places [n]."""
    rows = np.arange(len(values))[:, None]
    values[rows, places[:, None] + np.arange(shapes.shape[1])] += shapes
    return values
