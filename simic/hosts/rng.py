"""Counter-based random numbers: every draw is an integer hash of key, purpose and counter.

A draw depends on these coordinates alone, not on the order of calls or on other hosts.
The hash is the finaliser of SplitMix64 (Steele, Lea, Flood 2014, https://doi.org/10.1145/2660193.2660195).
Shapes: N rows (hosts), M draws per row.
"""

from __future__ import annotations

from enum import IntEnum

import numpy as np
from numpy.typing import ArrayLike, NDArray

__all__ = ["Purpose", "bits", "integers", "normals", "permutations", "streams", "uniforms"]

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)


class Purpose(IntEnum):
    """Purpose of a stream; part of the hash, so purposes never share numbers."""

    SHUFFLE = 1
    RECIPE = 2
    SUBSET = 3
    PAIRING = 4
    SELECTOR = 5
    LABEL_NOISE = 6
    GAIN = 7
    WEIGHTS = 8
    ORDER = 9
    BIRTH = 10
    DROPOUT = 11
    CONTROLLER = 12
    SANITY = 13
    MODULE = 14
    COLUMNS = 15
    IMBALANCE = 16
    SERIES = 17
    TEXT = 18


def _mix(z: NDArray[np.uint64]) -> NDArray[np.uint64]:
    z = (z ^ (z >> np.uint64(30))) * _MIX_1
    z = (z ^ (z >> np.uint64(27))) * _MIX_2
    return z ^ (z >> np.uint64(31))


def streams(keys: ArrayLike, purpose: Purpose, *words: int) -> NDArray[np.uint64]:
    """Return one stream per key, uint64 [N], for a purpose and further words (epoch, slot, ...)."""
    state = _mix(np.atleast_1d(np.asarray(keys, dtype=np.uint64)) + _GOLDEN)
    for word in (int(purpose), *words):
        # A word is not hashed like the key, or (key a, word b) would equal (key b, word a).
        state = _mix((state ^ np.array([word], dtype=np.uint64)) + _GOLDEN)
    return state


def bits(stream: NDArray[np.uint64], count: int, start: int = 0) -> NDArray[np.uint64]:
    """Return draws ``start`` to ``start + count - 1`` of each stream, uint64 [N, M]."""
    counters = np.arange(start + 1, start + count + 1, dtype=np.uint64) * _GOLDEN
    return _mix(stream[:, None] + counters)


def uniforms(stream: NDArray[np.uint64], count: int) -> NDArray[np.float64]:
    """Return uniform draws on [0, 1), float64 [N, M], with 53 random bits."""
    return (bits(stream, count) >> np.uint64(11)).astype(np.float64) * 2.0**-53


def integers(stream: NDArray[np.uint64], count: int, bound: int) -> NDArray[np.int64]:
    """Return integers in [0, bound), int64 [N, M]; the bias is below bound / 2**32."""
    return ((bits(stream, count) >> np.uint64(32)) % np.uint64(bound)).astype(np.int64)


def permutations(stream: NDArray[np.uint64], size: int) -> NDArray[np.int64]:
    """Return one permutation of ``range(size)`` per stream, int64 [N, size]."""
    return np.argsort(bits(stream, size), axis=1)


def normals(stream: NDArray[np.uint64], count: int) -> NDArray[np.float32]:
    """Return standard normal draws, float32 [N, M], by Box and Muller; row by row, so that no bits depend on N."""
    half = -(-count // 2)
    out = np.empty((len(stream), 2 * half), dtype=np.float32)
    for row, row_stream in zip(out, stream[:, None], strict=True):
        u = uniforms(row_stream, 2 * half)[0]
        radius = np.sqrt(-2.0 * np.log1p(-u[:half]))
        row[:half] = radius * np.cos(2.0 * np.pi * u[half:])
        row[half:] = radius * np.sin(2.0 * np.pi * u[half:])
    return out[:, :count]
