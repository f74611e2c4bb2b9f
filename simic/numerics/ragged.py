"""Ragged tables: the rows of group i are ``ptr[i]:ptr[i + 1]`` of one flat table.

Shapes: N groups, R rows of the table, B chosen groups.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

__all__ = ["concatenated_ranges", "ragged_rows", "row_owners"]


def row_owners(ptr: Tensor, rows: int | None = None) -> Tensor:
    """Return int64 [R]: the group that each row belongs to, from the offsets int64 [N + 1].

    Who knows the number of ``rows`` says it, else it is read from the device.
    """
    return torch.repeat_interleave(torch.arange(len(ptr) - 1, device=ptr.device), ptr.diff(), output_size=rows)


def ragged_rows(ptr: Tensor, groups: Tensor) -> tuple[Tensor, Tensor]:
    """Gather groups of a ragged table.

    Args:
        ptr: offsets int64 [N + 1].
        groups: int64 [B], in any order and with repeats.

    Returns:
        The rows of the chosen groups, one group after the other, and their offsets int64 [B + 1].
    """
    starts = ptr[groups]
    lengths = ptr[groups + 1] - starts
    out_ptr = torch.zeros(len(groups) + 1, dtype=torch.int64, device=ptr.device)
    torch.cumsum(lengths, 0, out=out_ptr[1:])
    total = int(out_ptr[-1])
    flat = torch.repeat_interleave(starts - out_ptr[:-1], lengths, output_size=total)
    return flat + torch.arange(total, device=ptr.device), out_ptr


def concatenated_ranges(starts: NDArray[np.int64], counts: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return ``starts[i], ..., starts[i] + counts[i] - 1`` for every i, one range after the other."""
    before = np.cumsum(counts) - counts
    positions: NDArray[np.int64] = np.repeat(starts - before, counts) + np.arange(int(counts.sum()))
    return positions
