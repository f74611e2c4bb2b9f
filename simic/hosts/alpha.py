"""How alpha moves: 0 to 1 over a ramp, by curve."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from simic.contracts.actions import ALPHA_CURVES, AlphaCurve

__all__ = ["progress", "ramp"]

_STEEPNESS = 8.0
"""Of the sigmoid: it covers all but 1.8 per cent at either end before it is stretched to reach both."""


def progress(share: ArrayLike, curve: ArrayLike) -> NDArray[np.float64]:
    """Share of the way to the target, after a share of the ramp; exactly 0 at 0 and 1 at 1, never falling."""
    x = np.clip(np.asarray(share, dtype=np.float64), 0.0, 1.0)
    edge = 1.0 / (1.0 + np.exp(_STEEPNESS / 2.0))
    shapes = {
        AlphaCurve.LINEAR: x,
        AlphaCurve.COSINE: (1.0 - np.cos(np.pi * x)) / 2.0,
        AlphaCurve.SIGMOID: (1.0 / (1.0 + np.exp(-_STEEPNESS * (x - 0.5))) - edge) / (1.0 - 2.0 * edge),
    }
    chosen: NDArray[Any] = np.choose(np.asarray(curve), [shapes[name] for name in ALPHA_CURVES])
    return np.where(x >= 1.0, 1.0, chosen)


def ramp(
    start: ArrayLike, target: ArrayLike, done: ArrayLike, epochs: ArrayLike, curve: ArrayLike
) -> NDArray[np.float32]:
    """Alpha in the ``done``-th epoch of a ramp (from 1 on); a ramp of 0 epochs is at its target at once."""
    length = np.maximum(np.asarray(epochs), 1)
    way = progress(np.asarray(done) / length, curve)
    start, target = np.asarray(start, dtype=np.float64), np.asarray(target, dtype=np.float64)
    return np.where(way >= 1.0, target, start + (target - start) * way).astype(np.float32)
