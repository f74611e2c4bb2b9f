"""A replayed function does what it does when it is called, and warming up leaves no trace."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from simic.hosts.batched.masked.cuda_graph import Replayed

DEVICES = [
    "cpu",
    pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")),
]


@pytest.mark.parametrize("device", DEVICES)
def test_every_call_adds_once_what_lies_in_the_memory_then(device: str) -> None:
    total, step = torch.zeros(3, device=device), torch.ones(3, device=device)

    def add() -> None:
        total.add_(step)

    replayed = Replayed(add, torch.device(device), [total])
    shown: list[Tensor] = []
    for value in (1.0, 10.0, 100.0):
        step.fill_(value)
        replayed()
        shown.append(total.cpu().clone())
    assert [values.tolist() for values in shown] == [[1.0] * 3, [11.0] * 3, [111.0] * 3]
