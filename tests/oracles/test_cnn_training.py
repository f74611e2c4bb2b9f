"""The stacked convolutional hosts against one ``nn.Module`` per host under autograd: the benchmark's reference."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn.functional import batch_norm, conv2d

from simic.hosts.batched.dataset import recipes_of
from simic.hosts.host_sets import SETS, identify
from simic.hosts.plugins import load_family


@pytest.fixture(scope="module")
def benchmark() -> ModuleType:
    """``benchmarks/cnn_hosts.py``, which is no package."""
    path = Path(__file__).parents[2] / "benchmarks" / "cnn_hosts.py"
    spec = importlib.util.spec_from_file_location("benchmark_of_cnn_hosts", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("with_seeds", [False, True])
def test_trajectories_agree(benchmark: ModuleType, with_seeds: bool) -> None:
    hosts = range(9 if with_seeds else 5)
    in_turn, grown = benchmark.InTurn(hosts), set()

    def follow(epoch: int, roles: list[Any]) -> None:
        grown.update(role.blueprint for role in roles if role is not None)
        in_turn.run(epoch, roles)

    ours = benchmark.run_stacked(hosts, 5, with_seeds=with_seeds, then=follow)
    benchmark.assert_agree(ours, in_turn.trace())
    assert grown == (set(SETS["images"].blueprints) if with_seeds else set())
    assert np.isfinite(ours.without).any(axis=0).all() == with_seeds, "every seed is felt in the end"


def test_a_block_of_normalised_convolutions_is_that_of_torch() -> None:
    """In training, by autograd and by the pass without it, and in evaluation; a host's running values are its own."""
    name, draw = "conv_normed_8x1", torch.Generator().manual_seed(3)
    trunk = load_family(name).trunk(recipes_of(identify(name, [2, 7])))
    shapes = [part.shape for part in trunk.parts_of(0, trunk.parts)]
    parts = [torch.rand(2, *shape, generator=draw) + 0.1 for shape in shapes]
    x, above = torch.randn(2, 2, 6, 4, 4, 8, generator=draw)
    leaves = [one.requires_grad_() for one in (x, *parts[:3])]

    def reference(host: int, *, training: bool) -> Tensor:
        kernel, scale, shift, mean, variance = (part[host] for part in parts)
        z = conv2d(x[host].permute(0, 3, 1, 2), kernel.permute(3, 2, 0, 1), padding=1)
        return batch_norm(z, mean.clone(), variance.clone(), scale, shift, training=training).relu().permute(0, 2, 3, 1)

    every = [None, *parts]
    found, expected = trunk.block(0, every, x), torch.stack([reference(host, training=True) for host in range(2)])
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    ours, theirs = (torch.autograd.grad(one, leaves, above) for one in (found, expected))
    torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-4)
    with torch.no_grad():
        out, pulled = torch.empty_like(x), [torch.empty_like(part) for part in parts]
        block = trunk.enter(0, every, x, out)
        torch.testing.assert_close(out, expected, rtol=1e-4, atol=1e-5)
        state = block.pull(above, 2, pulled)
        torch.testing.assert_close((state, *pulled[:3]), theirs, rtol=1e-3, atol=1e-4)
        z = torch.stack(
            [conv2d(x[host].permute(0, 3, 1, 2), parts[0][host].permute(3, 2, 0, 1), padding=1) for host in (0, 1)]
        )
        away = parts[3] - z.mean(dim=(1, 3, 4)), parts[4] - z.var(dim=(1, 3, 4))
        torch.testing.assert_close((pulled[3], pulled[4]), away, rtol=1e-4, atol=1e-5)
        evaluated = torch.stack([reference(host, training=False) for host in range(2)])
        torch.testing.assert_close(trunk.block(0, every, x), evaluated, rtol=1e-4, atol=1e-5)
