"""The stacked convolutional hosts against one ``nn.Module`` per host under autograd: the benchmark's reference."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from simic.hosts.keys import SETS


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
    ours = benchmark.run_stacked(hosts, 5, with_seeds=with_seeds)
    theirs = benchmark.run_reference(hosts, ours.roles)
    benchmark.assert_agree(ours, theirs)
    if with_seeds:
        assert {row.blueprint for row in ours.roles[0]} == set(SETS["images"].blueprints)
        assert np.isfinite(ours.without).any(axis=0).all(), "every seed is felt in the end"
