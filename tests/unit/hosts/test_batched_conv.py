"""Convolution of stacked hosts, against torch's own and against itself alone."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn.functional import conv2d

from simic.hosts.batched.conv import convolve


def _case(hosts: int, samples: int = 32, edge: tuple[int, int] = (4, 4), outputs: int = 8) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(hosts, samples, *edge, 12, generator=generator)
    return x, torch.randn(hosts, 3, 3, 12, outputs, generator=generator)


def _with_gradients(x: Tensor, weight: Tensor) -> list[Tensor]:
    """Result, and gradients of something that tells all of it apart."""
    x, weight = x.clone().requires_grad_(), weight.clone().requires_grad_()
    out = convolve(x, weight)
    return [out.detach(), *torch.autograd.grad((out * out.detach().cos()).sum(), (x, weight))]


@pytest.mark.parametrize("edge", [(4, 4), (1, 1), (2, 5), (7, 3)])
def test_it_is_a_convolution_per_host(edge: tuple[int, int]) -> None:
    x, weight = (part.double().requires_grad_() for part in _case(3, 5, edge))
    ours = convolve(x, weight)
    theirs = torch.stack(
        [
            conv2d(one.permute(0, 3, 1, 2), kernel.permute(3, 2, 0, 1), padding=1).permute(0, 2, 3, 1)
            for one, kernel in zip(x, weight, strict=True)
        ]
    )
    torch.testing.assert_close(ours, theirs)
    above = torch.randn(ours.shape, dtype=ours.dtype, generator=torch.Generator().manual_seed(1))
    for mine, other in zip(*(torch.autograd.grad(out, (x, weight), above) for out in (ours, theirs)), strict=True):
        torch.testing.assert_close(mine, other)


@pytest.mark.parametrize("samples", [32, 480])
def test_bits_depend_on_neither_neighbours_nor_threads(samples: int) -> None:
    case = _case(33, samples)
    together = _with_gradients(*case)
    for count in (1, 2, 7, 33):
        chosen = torch.randperm(33, generator=torch.Generator().manual_seed(count))[:count]
        for alone, all_ in zip(_with_gradients(*(part[chosen] for part in case)), together, strict=True):
            assert torch.equal(alone, all_[chosen])
    alone = _with_gradients(*(part[:1] for part in case))
    torch.set_num_threads(2)
    try:
        assert all(map(torch.equal, _with_gradients(*case), together))
        assert all(map(torch.equal, _with_gradients(*(part[:1] for part in case)), alone))
    finally:
        torch.set_num_threads(1)
