"""Squared gradients of single samples equal those of one backward pass per sample."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from simic.contracts.errors import ContractError
from simic.learning.continual.per_sample import squared_gradient_sums
from simic.numerics.ragged import row_owners


class Pooled(nn.Module):
    """Rows of each sample through a norm and two layers, summed, then a layer on the samples."""

    def __init__(self) -> None:
        super().__init__()
        self.rows = nn.Sequential(nn.Linear(3, 5), nn.LayerNorm(5), nn.Tanh(), nn.Linear(5, 4, bias=False))
        self.samples = nn.Linear(4, 1)

    def forward(self, x: Tensor, ptr: Tensor) -> Tensor:
        pooled = torch.zeros(len(ptr) - 1, 4, dtype=x.dtype).index_add(0, row_owners(ptr), self.rows(x))
        out: Tensor = self.samples(pooled).squeeze(1).square()
        return out


@given(lengths=st.lists(st.integers(0, 4), min_size=1, max_size=7), seed=st.integers(0, 2**31))
def test_d18_squares_are_those_of_one_backward_pass_per_sample(lengths: list[int], seed: int) -> None:
    """Samples of any number of rows, none included; the rows of a sample are summed before they are squared."""
    network, x, ptr = pooled(lengths, seed)
    offsets = {"samples": torch.arange(len(ptr))}
    found = squared_gradient_sums(network, lambda: network(x, ptr), lambda name: offsets.get(name, ptr))
    expected = one_by_one(network, lambda: network(x, ptr))
    assert set(found) == set(expected)
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value)


def test_a_layer_that_is_applied_twice_is_refused() -> None:
    layer = nn.Linear(2, 2)
    x = torch.ones(3, 2)
    with pytest.raises(ContractError, match="layer  is applied twice"):
        squared_gradient_sums(layer, lambda: layer(layer(x)).sum(1), lambda _: torch.arange(4))


def test_rows_that_belong_to_no_sample_are_refused() -> None:
    network, x, ptr = pooled([2, 1], 0)
    with pytest.raises(ContractError, match=r"layer rows\.0 has 3 rows, expected 2 of all samples"):
        squared_gradient_sums(network, lambda: network(x, ptr), lambda _: torch.arange(3))


def test_hooks_are_gone_after_an_error() -> None:
    network, x, ptr = pooled([2, 1], 0)
    with pytest.raises(ZeroDivisionError):
        squared_gradient_sums(network, lambda: network(x, ptr) / (1 // 0), lambda _: ptr)
    assert not any(layer._forward_hooks for layer in network.modules())


def pooled(lengths: list[int], seed: int) -> tuple[Pooled, Tensor, Tensor]:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        network = Pooled().double()
        x = torch.randn(sum(lengths), 3, dtype=torch.float64)
    return network, x, torch.tensor([0, *lengths]).cumsum(0)


def one_by_one(network: nn.Module, numbers: Callable[[], Tensor]) -> dict[str, Tensor]:
    sums = {name: torch.zeros_like(value) for name, value in network.named_parameters()}
    for index in range(len(numbers())):
        network.zero_grad()
        numbers()[index].backward()
        for name, value in network.named_parameters():
            if value.grad is not None:
                sums[name] += value.grad.square()
    return sums
