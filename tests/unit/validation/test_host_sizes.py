"""Parameters of hosts: counted from what the hosts hold in memory."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from simic.contracts.config import WorldConfig
from simic.hosts.batched.host_batch import Snapshot
from simic.hosts.custom.host_batch import Snapshot as ModuleSnapshot
from simic.hosts.factory import make_host_batch
from simic.hosts.host_sets import host_set, identify
from simic.validation.episodes import Episodes
from simic.validation.host_sizes import extra_compute, host_parameters


@pytest.mark.parametrize("set_name", ["benchmark", "varied", "images"])
def test_sizes_of_batched_hosts_are_their_weights_that_are_not_padding(set_name: str) -> None:
    """Padding is zero at birth; every other weight is drawn from a normal distribution."""
    hosts, world = identify(set_name, range(12)), WorldConfig(set=set_name)
    snapshot = make_host_batch(hosts, host_set(set_name), world).snapshot()
    assert isinstance(snapshot, Snapshot)
    used = sum((part != 0).flatten(1).sum(dim=1) for part in snapshot.weights.parts)
    assert isinstance(used, torch.Tensor)
    assert host_parameters(hosts, world).tolist() == used.tolist()


def test_sizes_of_modules_are_what_their_hosts_train() -> None:
    hosts = [host for host in identify("trunks", range(12)) if host.family == "cnn_plain"]
    world = WorldConfig(set="trunks")
    snapshot = make_host_batch(hosts, host_set("trunks"), world).snapshot()
    assert isinstance(snapshot, ModuleSnapshot)
    held = [sum(tensor.numel() for tensor in host.momentum.values()) for host in snapshot.hosts]
    assert host_parameters(hosts, world).tolist() == held


def test_compute_is_a_share_of_the_host_times_the_whole_horizon() -> None:
    nothing = np.zeros(2)
    episodes = Episodes(*[nothing] * 4, np.array([4000, 0]), *[nothing] * 6)  # type: ignore[arg-type]
    assert extra_compute(episodes, np.array([1000, 500]), 20).tolist() == [0.2, 0.0]
