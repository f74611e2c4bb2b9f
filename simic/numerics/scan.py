"""Linear recurrences over time, backwards, in whole-tensor operations."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["reverse_scan"]


def reverse_scan(decays: Tensor, deltas: Tensor) -> Tensor:
    """Return ``x_t = deltas_t + decays_t x_{t+1}`` with ``x_T = 0``, all [T, B], in log2 T whole-tensor rounds.

    Each round doubles the number of terms that every row has summed (Hillis and Steele 1986). Products of decays
    are formed ahead of the deltas they meet, and with decays above 1 they can leave float32: hence float64.
    """
    steps = deltas.shape[0]
    decay, total = decays.double(), deltas.to(torch.float64, copy=True)
    reach = 1
    while reach < steps:
        # Rows from ``steps - reach`` on already include the end and are final; their decays are not used again.
        open_rows = steps - reach
        total[:open_rows] += decay[:open_rows] * total[reach:]
        if open_rows > reach:
            decay = decay[: open_rows - reach] * decay[reach:open_rows]
        reach *= 2
    return total.to(deltas.dtype)
