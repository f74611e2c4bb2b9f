"""Reductions of rows by their owner, for example of messages by the node that gets them.

PyTorch divides even the smallest of them between its threads, and where other programs hold the cores these wait a
thousand times as long as they compute. Where the index is no expanded view, one thread computes.
Shapes: E rows, H features, n owners.
"""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["largest_of_owners", "sums_of_owners"]

_MANY = 2**15
"""Numbers from which a reduction is worth several threads: PyTorch's own grain of elementwise functions."""


def sums_of_owners(rows: Tensor, owners: Tensor, count: int) -> Tensor:
    """Return [n, H], the sums of the rows [E, H] of each of ``count`` owners, in their order."""
    total = rows.new_zeros(count, rows.shape[1])
    if _is_for_threads(rows):
        return total.index_add_(0, owners, rows)
    return total.scatter_add_(0, _index(rows, owners), rows)


def largest_of_owners(rows: Tensor, owners: Tensor, count: int) -> Tensor:
    """Return [n, H], per column the largest value of the rows [E, H] of each of ``count`` owners; 0 is one of them."""
    largest = rows.new_zeros(count, rows.shape[1])
    return largest.scatter_reduce(0, _index(rows, owners), rows, reduce="amax")


def _is_for_threads(rows: Tensor) -> bool:
    return torch.get_num_threads() == 1 or rows.numel() >= _MANY


def _index(rows: Tensor, owners: Tensor) -> Tensor:
    """Return the owner of every number, int64 [E, H]."""
    index = owners.unsqueeze(1).expand_as(rows)
    return index if _is_for_threads(rows) else index.contiguous()
