"""Reductions of rows by their owner: the values of a plain loop, and the same bits with any number of threads."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from simic.numerics.reductions import largest_of_owners, sums_of_owners

Reduction = Callable[[Tensor, Tensor, int], Tensor]


@pytest.fixture(params=[1, 2])
def threads(request: pytest.FixtureRequest) -> Iterator[int]:
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


def drawn(rows: int, width: int, owners: int) -> tuple[Tensor, Tensor]:
    draw = torch.Generator().manual_seed(rows)
    return (
        torch.randn(rows, width, generator=draw, dtype=torch.float64),
        torch.randint(owners, (rows,), generator=draw),
    )


def in_turn(reduction: Reduction, rows: Tensor, owners: Tensor, count: int) -> Tensor:
    found = torch.zeros(count, rows.shape[1], dtype=rows.dtype)
    for row, owner in zip(rows, owners.tolist(), strict=True):
        found[owner] = found[owner] + row if reduction is sums_of_owners else torch.maximum(found[owner], row)
    return found


@pytest.mark.parametrize("reduction", [sums_of_owners, largest_of_owners])
@pytest.mark.parametrize(("rows", "width"), [(0, 4), (1, 1), (14, 64), (511, 64), (512, 64), (700, 64), (700, 3)])
def test_values_are_those_of_a_plain_loop(threads: int, reduction: Reduction, rows: int, width: int) -> None:
    """Below and above the size from which several threads compute; owners without rows have 0."""
    values, owners = drawn(rows, width, 9)
    assert torch.equal(reduction(values, owners, 11), in_turn(reduction, values, owners, 11))


class _Dispatched(TorchDispatchMode):
    """Notes the operations on tensors, and whether the index of a scatter is contiguous."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[tuple[str, bool]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if "scatter" in func.__name__ or "index_add" in func.__name__:
            self.found.append((func.__name__.partition(".")[0], args[2].is_contiguous()))
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize(("threads", "rows", "is_alone"), [(2, 40, True), (2, 700, False), (1, 40, False)])
def test_one_thread_makes_small_ones(threads: int, rows: int, is_alone: bool) -> None:
    """PyTorch leaves a scatter with a contiguous index to one thread, and divides every other one."""
    torch.set_num_threads(threads)
    values, owners = drawn(rows, 64, 9)
    with _Dispatched() as seen:
        sums_of_owners(values, owners, 9)
        largest_of_owners(values, owners, 9)
    torch.set_num_threads(1)
    sums = ("scatter_add_", True) if is_alone else ("index_add_", True)
    assert seen.found == [sums, ("scatter_reduce", is_alone)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("rows", [40, 700])
@pytest.mark.parametrize("reduction", [sums_of_owners, largest_of_owners])
def test_gradients_do_not_depend_on_the_threads(reduction: Reduction, rows: int, dtype: torch.dtype) -> None:
    values, owners = drawn(rows, 64, 9)
    values, above, gradients = values.to(dtype), torch.randn(9, 64, dtype=dtype), []
    for threads in (1, 2):
        torch.set_num_threads(threads)
        leaf = values.clone().requires_grad_()
        gradients += torch.autograd.grad(reduction(leaf, owners, 9), leaf, above)
    torch.set_num_threads(1)
    assert torch.equal(*gradients)
