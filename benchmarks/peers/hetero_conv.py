"""The policy network with message passing by PyG's ``HeteroConv``: the peer of ``simic/controllers/network.py``.

Its parameters have the names of the peer's, so one loads the weights of the other.
"""

from __future__ import annotations

import warnings

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch_geometric.nn import HeteroConv, HeteroDictLinear, SAGEConv
from torch_geometric.utils import scatter

from simic.controllers.graph import EDGE_TYPES, EdgeType, GraphBatch
from simic.controllers.network import PolicyNetwork, Relation
from simic.numerics.ragged import row_owners

__all__ = ["HeteroConvLayer", "HeteroConvNetwork"]


class HeteroConvLayer(nn.Module):
    """h <- LayerNorm(h + relu(W h + sum over relations of W_r times the mean of the neighbours))."""

    def __init__(self, hidden: int, targets: tuple[str, ...]) -> None:
        super().__init__()
        self.own = HeteroDictLinear(dict.fromkeys(targets, hidden), hidden)
        with warnings.catch_warnings():
            # The last layer omits the layer nodes, because their new state is not used.
            warnings.filterwarnings("ignore", message="There exist node types")
            self.messages = HeteroConv(
                {
                    edge: SAGEConv((hidden, hidden), hidden, aggr="mean", root_weight=False, bias=False)
                    for edge in EDGE_TYPES
                    if edge[2] in targets
                },
                aggr="sum",
            )
        self.norms = nn.ModuleDict({node: nn.LayerNorm(hidden) for node in targets})

    def forward(self, h: dict[str, Tensor], relations: dict[EdgeType, Relation]) -> dict[str, Tensor]:
        """Return the new states [rows, H] of the layer's node types; PyG counts the neighbours itself."""
        edges = {name: relation.edges for name, relation in relations.items()}
        own, received = self.own(h), self.messages(h, edges)
        return {node: norm(h[node] + functional.relu(own[node] + received[node])) for node, norm in self.norms.items()}


class HeteroConvNetwork(PolicyNetwork):
    """A ``PolicyNetwork`` in PyG's form, with the weights of the network it is made from."""

    def __init__(self, network: PolicyNetwork) -> None:
        super().__init__(network.shape, seed=None)
        for encoder in (self.policy_encoder, self.value_encoder):
            encoder.layers = nn.ModuleList(
                HeteroConvLayer(next(iter(layer.norms.values())).weight.shape[0], tuple(layer.norms))
                for layer in encoder.layers
            )
        self.load_state_dict(network.state_dict())
        self.to(network.op_head[0].weight.dtype)

    @staticmethod
    def _summary(batch: GraphBatch, h: dict[str, Tensor]) -> Tensor:
        """Return [N, 2 H]: the context, and the strongest positive response among the graph's slots."""
        strongest = scatter(h["slot"].relu(), row_owners(batch.slot_ptr), dim_size=batch.graphs, reduce="max")
        return torch.cat([h["context"], strongest], dim=1)
