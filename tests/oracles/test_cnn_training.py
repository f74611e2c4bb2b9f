"""The stacked convolutional hosts against one ``nn.Module`` per host under autograd: the benchmark's reference."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from simic.hosts.host_sets import SETS


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
