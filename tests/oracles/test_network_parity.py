"""The network against message passing by PyG's ``HeteroConv``: same weights, same results."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from peers.hetero_conv import HeteroConvNetwork

from simic.contracts.settings.run import WorldConfig
from simic.controllers.features import encode
from simic.controllers.graph import GraphBatch
from simic.controllers.network import NetworkOutput, NetworkShape, PolicyNetwork, strongest_slot
from simic.hosts.ensemble import Ensemble
from simic.hosts.host_sets import identify
from simic.hosts.plugins import blueprint_names
from simic.replay.graph_table import GraphTable


@pytest.fixture(scope="module")
def batch() -> GraphBatch:
    """Graphs of real hosts with random features, so that no node equals another."""
    observations = Ensemble(identify("benchmark", range(8)), WorldConfig()).observe()
    table = GraphTable.of(encode(observations.take(np.arange(64) % len(observations))))
    generator = torch.Generator().manual_seed(0)
    drawn = [torch.randn(x.shape, generator=generator) for x in (table.context_x, table.slot_x, table.layer_x)]
    table = table._replace(context_x=drawn[0], slot_x=drawn[1], layer_x=drawn[2])
    return table.take(torch.randint(0, 64, (96,), generator=generator))


@pytest.fixture(params=[1, 2, 3], ids=lambda layers: f"{layers} layers")
def network(request: pytest.FixtureRequest) -> PolicyNetwork:
    return PolicyNetwork(NetworkShape(48, request.param, blueprint_names()), seed=3)


def test_logits_and_values_equal_those_of_hetero_conv(network: PolicyNetwork, batch: GraphBatch) -> None:
    with torch.no_grad():
        ours, theirs = network(batch), HeteroConvNetwork(network)(batch)
    assert float(ours.value.std()) > 0 and float(ours.op.std()) > 0
    for name, mine, other in zip(NetworkOutput._fields, ours, theirs, strict=True):
        # A value is a sum of terms of the size of the value scale; everything else is of size 1.
        assert (mine - other).abs().max() <= 1e-6 * max(1.0, float(other.abs().max())), name


def test_gradients_equal_those_of_hetero_conv(network: PolicyNetwork, batch: GraphBatch) -> None:
    """In float64, where only a different formula could differ by more than rounding."""
    network = network.double()
    batch = batch._replace(
        context_x=batch.context_x.double(), slot_x=batch.slot_x.double(), layer_x=batch.layer_x.double()
    )
    found = []
    for form in (network, HeteroConvNetwork(network)):
        names, parameters = zip(*form.named_parameters(), strict=True)
        loss = sum((column.square().mean() for column in form(batch)), torch.zeros(()))
        gradients = torch.autograd.grad(loss, parameters, allow_unused=True)
        found.append(dict(zip(names, gradients, strict=True)))
    assert found[0].keys() == found[1].keys()
    for name, mine in found[0].items():
        assert (mine is None) == (found[1][name] is None), name
        if mine is not None:
            torch.testing.assert_close(mine, found[1][name], rtol=1e-6, atol=1e-12)


def test_slots_that_all_respond_negatively_count_as_0() -> None:
    """So does a graph without slots."""
    slots = torch.tensor([[-1.0, 2.0], [-3.0, 1.0], [-4.0, -5.0]])
    assert strongest_slot(torch.tensor([0, 2, 2, 3]), slots).tolist() == [[0.0, 2.0], [0.0, 0.0], [0.0, 0.0]]
