"""Linear recurrences over time, backwards, in whole-tensor operations."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

__all__ = ["reverse_scan"]


def reverse_scan(decays: Tensor, deltas: Tensor) -> Tensor:
    """Return ``x_t = deltas_t + decays_t x_{t+1}`` with ``x_T = 0``, all [T, B], in log2 T whole-tensor rounds.

    Each round doubles the number of terms that every row has summed (Hillis and Steele 1986). Products of decays
    are formed ahead of the deltas they meet, and with decays above 1 they can leave float32: hence float64. On the CPU
    NumPy multiplies and adds, with the same bits, because it takes less time per small operation.
    """
    decay, total = decays.double(), deltas.to(torch.float64, copy=True)
    if deltas.device.type == "cpu":
        _add_successors(decay.numpy(), total.numpy())
    else:
        _add_successors(decay, total)
    return total.to(deltas.dtype)


def _add_successors(decay: Any, total: Any) -> None:
    """Run all rounds on tensors or arrays; ``total`` changes in place."""
    steps, reach = len(total), 1
    while reach < steps:
        # Rows from ``steps - reach`` on already include the end and are final; their decays are not used again.
        open_rows = steps - reach
        total[:open_rows] += decay[:open_rows] * total[reach:]
        if open_rows > reach:
            decay = decay[: open_rows - reach] * decay[reach:open_rows]
        reach *= 2
