"""The policy network with the message passing of architecture ``hetero-sage-3``: the peer of PyG's ``HeteroConv``.

It sums the relations in a loop over ``SAGEConv`` modules and takes the maximum over slots with ``scatter_reduce``.
Shapes: rows are nodes of one type, N graphs, H hidden width.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch_geometric.nn import SAGEConv

from simic.controllers.graph import EDGE_TYPES, EdgeType, GraphBatch
from simic.controllers.network import HeteroSageLayer, PolicyNetwork
from simic.numerics.ragged import row_owners

__all__ = ["LoopLayer", "LoopNetwork"]


class LoopLayer(nn.Module):
    """h <- LayerNorm(h + relu(W h + sum over relations of W_r times the mean of the neighbours))."""

    def __init__(self, layer: HeteroSageLayer) -> None:
        """Take over the weights of ``layer``."""
        super().__init__()
        self.own = nn.ModuleDict(dict(layer.own.lins.items()))
        self.norms = layer.norms
        self.relations = [edge for edge in EDGE_TYPES if edge[2] in self.own]
        self.messages = nn.ModuleDict()
        for edge in self.relations:
            relation = layer.messages.convs[edge]
            width = relation.lin_l.weight.shape
            own = SAGEConv((width[1], width[1]), width[0], aggr="mean", root_weight=False, bias=False)
            own.lin_l.weight = relation.lin_l.weight
            self.messages["__".join(edge)] = own

    def forward(self, h: dict[str, Tensor], edges: dict[EdgeType, Tensor]) -> dict[str, Tensor]:
        """Return the new states [rows, H] of the layer's node types."""
        summed = {node: own(h[node]) for node, own in self.own.items()}
        for edge in self.relations:
            source, _, target = edge
            summed[target] = summed[target] + self.messages["__".join(edge)]((h[source], h[target]), edges[edge])
        return {node: norm(h[node] + functional.relu(summed[node])) for node, norm in self.norms.items()}


class LoopNetwork(PolicyNetwork):
    """A ``PolicyNetwork`` in the old form, sharing the parameters of the network it is made from."""

    def __init__(self, network: PolicyNetwork) -> None:
        super().__init__(network.shape, seed=None)
        for name, module in network.named_children():
            if not name.endswith("_encoder"):
                setattr(self, name, module)
        for name in ("policy_encoder", "value_encoder"):
            theirs, ours = getattr(network, name), getattr(self, name)
            ours.inputs = theirs.inputs
            ours.layers = nn.ModuleList(LoopLayer(layer) for layer in theirs.layers)
        self.value_mean, self.value_scale = network.value_mean, network.value_scale

    @staticmethod
    def _summary(batch: GraphBatch, h: dict[str, Tensor]) -> Tensor:
        """Return [N, 2 H]: the context, and the strongest positive response among the graph's slots."""
        context, slot = h["context"], h["slot"]
        index = row_owners(batch.slot_ptr).unsqueeze(1).expand_as(slot)
        strongest = torch.zeros_like(context).scatter_reduce(0, index, slot, reduce="amax")
        return torch.cat([context, strongest], dim=1)
