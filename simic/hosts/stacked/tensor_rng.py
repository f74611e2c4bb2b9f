"""The draws of ``counter_rng`` made where the tensors are: the same bits, on any device.

PyTorch has no full set of unsigned operations, so words are int64; sums and products wrap around to the same bits, and
shifts are masked, since those of signed words repeat the sign.
Shapes: N rows (hosts), M draws per row.
"""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["noise"]

_SHIFT_TO_24_BITS = 40


def noise(stream: Tensor, count: int, start: int = 0) -> Tensor:
    """Draws ``start`` .. ``start + count - 1`` of each stream int64 [N], uniform in [0, 1) with 24 bits; [N, M]."""
    counters = torch.arange(start + 1, start + count + 1, device=stream.device) * _signed(0x9E3779B97F4A7C15)
    z = stream[:, None] + counters
    z = (z ^ _shifted(z, 30)) * _signed(0xBF58476D1CE4E5B9)
    z = (z ^ _shifted(z, 27)) * _signed(0x94D049BB133111EB)
    z = z ^ _shifted(z, 31)
    return _shifted(z, _SHIFT_TO_24_BITS).float() * 2.0**-24


def _shifted(z: Tensor, by: int) -> Tensor:
    return (z >> by) & ((1 << (64 - by)) - 1)


def _signed(word: int) -> int:
    """The int64 of the same bits as an unsigned word."""
    return word - (1 << 64) if word >> 63 else word
