"""Ragged tables against lists of lists."""

from __future__ import annotations

import numpy as np
import torch

from simic.numerics.ragged import concatenated_ranges, ragged_rows, row_owners

GROUPS = [[10, 11], [], [12], [13, 14, 15]]
PTR = torch.tensor([0, 2, 2, 3, 6])
VALUES = torch.tensor([value for group in GROUPS for value in group])


def test_rows_of_chosen_groups_come_in_the_order_chosen() -> None:
    chosen = [3, 0, 1, 3]
    rows, ptr = ragged_rows(PTR, torch.tensor(chosen))
    assert VALUES[rows].tolist() == [value for group in chosen for value in GROUPS[group]]
    assert ptr.tolist() == [0, 3, 5, 5, 8]


def test_no_groups_give_no_rows() -> None:
    rows, ptr = ragged_rows(PTR, torch.tensor([], dtype=torch.int64))
    assert rows.tolist() == [] and ptr.tolist() == [0]


def test_every_row_knows_its_group() -> None:
    assert row_owners(PTR).tolist() == [0, 0, 2, 3, 3, 3]


def test_ranges_follow_each_other() -> None:
    assert concatenated_ranges(np.array([5, 0, 7]), np.array([2, 0, 3])).tolist() == [5, 6, 7, 8, 9]
    assert concatenated_ranges(np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64)).tolist() == []
