"""Sizes of hosts: counted from what the hosts hold in memory."""

from __future__ import annotations

import pytest
import torch

from simic.contracts.settings.run import WorldConfig
from simic.hosts.batched.data import digit_pool
from simic.hosts.batched.host_batch import Snapshot
from simic.hosts.custom.host_batch import CustomSnapshot
from simic.hosts.factory import make_host_batch
from simic.hosts.host_sets import host_set, identify
from simic.hosts.interfaces import DataSplit
from simic.hosts.plugins import load_module_family
from simic.validation.host_sizes import host_sizes


@pytest.mark.parametrize("set_name", ["benchmark", "varied", "images"])
def test_sizes_of_batched_hosts_are_their_weights_that_are_not_padding(set_name: str) -> None:
    """Padding is zero at birth; every other weight is drawn from a normal distribution."""
    hosts, world = identify(set_name, range(12)), WorldConfig(set=set_name)
    snapshot = make_host_batch(hosts, host_set(set_name), world).snapshot()
    assert isinstance(snapshot, Snapshot)
    used = sum((part != 0).flatten(1).sum(dim=1) for part in snapshot.weights.parts)
    assert isinstance(used, torch.Tensor)
    assert host_sizes(hosts, world).parameters.tolist() == used.tolist()


def test_sizes_of_modules_are_what_their_hosts_train() -> None:
    hosts = [host for host in identify("trunks", range(12)) if host.family == "cnn_plain"]
    world = WorldConfig(set="trunks")
    snapshot = make_host_batch(hosts, host_set("trunks"), world).snapshot()
    assert isinstance(snapshot, CustomSnapshot)
    held = [sum(tensor.numel() for tensor in host.momentum.values()) for host in snapshot.hosts]
    assert host_sizes(hosts, world).parameters.tolist() == held


@pytest.mark.parametrize("set_name", ["varied", "trunks"])
def test_samples_are_those_that_hosts_train_on_and_are_measured_on(set_name: str) -> None:
    """Batched hosts show 512 samples an epoch, however few they have; modules leave out an incomplete batch."""
    hosts = identify(set_name, range(3, 7))
    found = host_sizes(hosts, WorldConfig(set=set_name))
    if set_name == "varied":
        pool = len(digit_pool(DataSplit.VALIDATION).labels)
        assert [column.tolist() for column in found[1:]] == [[512] * 4, [pool] * 4, [32] * 4]
        return
    for row, host in enumerate(hosts):
        made = load_module_family(host.family).host(host.key)
        assert len(made.train.labels) - made.batch < found.samples[row] <= len(made.train.labels)
        assert (found.samples[row] % made.batch, found.batch[row]) == (0, made.batch)
        assert found.validation[row] == len(made.validation.labels)
