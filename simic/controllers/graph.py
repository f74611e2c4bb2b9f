"""A batch of host graphs as flat columns, in the form that the network reads.

Shapes: N graphs (one context node each), S slot nodes, L layer nodes, E edges of a type, F features of a node type.
Nodes of one graph are contiguous and edges are sorted by graph, so offsets identify the graph of every row.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from simic.numerics.ragged import row_owners

__all__ = [
    "CONNECTS",
    "EDGE_TYPES",
    "MONITORS",
    "NODE_TYPES",
    "EdgeType",
    "GraphBatch",
    "GraphSizes",
    "NodeFeatures",
    "build",
]

EdgeType = tuple[str, str, str]

NODE_TYPES = ("context", "slot", "layer")
CONNECTS: EdgeType = ("layer", "connects", "layer")
MONITORS: EdgeType = ("slot", "monitors", "layer")
EDGE_TYPES: tuple[EdgeType, ...] = (
    CONNECTS,
    MONITORS,
    ("layer", "hosts", "slot"),
    ("layer", "informs", "context"),
    ("slot", "informs", "context"),
    ("context", "guides", "layer"),
    ("context", "guides", "slot"),
)
"""``hosts`` is ``monitors`` reversed. The context node is joined with every other node of its graph, both ways."""


class NodeFeatures(Protocol):
    """Feature columns of many graphs, without their edges."""

    @property
    def context_x(self) -> Tensor:
        """Return float32 [N, F]."""

    @property
    def slot_x(self) -> Tensor:
        """Return float32 [S, F]."""

    @property
    def layer_x(self) -> Tensor:
        """Return float32 [L, F]."""


class GraphSizes(NamedTuple):
    """Numbers of rows and edges of some graphs."""

    slots: int
    layers: int
    connects: int
    monitors: int


class GraphBatch(NamedTuple):
    """N graphs whose edges are numbered over the whole batch."""

    context_x: Tensor
    """float32 [N, F]"""
    slot_x: Tensor
    """float32 [S, F]"""
    layer_x: Tensor
    """float32 [L, F]"""
    slot_ptr: Tensor
    """int64 [N + 1]: graph i owns slots ``slot_ptr[i]:slot_ptr[i + 1]``."""
    layer_ptr: Tensor
    """int64 [N + 1]"""
    edges: dict[EdgeType, Tensor]
    """int64 [2, E] per type of ``EDGE_TYPES``: source row, target row."""
    connects_ptr: Tensor
    """int64 [N + 1]: offsets of the ``connects`` edges of each graph."""
    monitors_ptr: Tensor
    """int64 [N + 1]: offsets of the ``monitors`` edges and of the ``hosts`` edges of each graph."""

    @property
    def graphs(self) -> int:
        """Return N, the number of graphs."""
        return int(self.context_x.shape[0])

    @property
    def sizes(self) -> GraphSizes:
        """Return the numbers of rows and edges."""
        connects, monitors = (self.edges[name].shape[1] for name in (CONNECTS, MONITORS))
        return GraphSizes(len(self.slot_x), len(self.layer_x), connects, monitors)

    def first(self, count: int, sizes: GraphSizes) -> GraphBatch:
        """Return the first ``count`` graphs, which have ``sizes``, as views of this batch."""
        slots, layers, connects, monitors = sizes
        lengths = (connects, monitors, monitors, layers, slots, layers, slots)
        return GraphBatch(
            self.context_x[:count],
            self.slot_x[:slots],
            self.layer_x[:layers],
            self.slot_ptr[: count + 1],
            self.layer_ptr[: count + 1],
            {name: self.edges[name][:, :length] for name, length in zip(EDGE_TYPES, lengths, strict=True)},
            self.connects_ptr[: count + 1],
            self.monitors_ptr[: count + 1],
        )

    def to(self, device: torch.device) -> GraphBatch:
        """Return the same batch on another device."""
        edges = {name: edge.to(device) for name, edge in self.edges.items()}
        moved = {name: value.to(device) for name, value in self._asdict().items() if name != "edges"}
        return GraphBatch(**moved, edges=edges)


def build(
    context_x: Tensor,
    slot_x: Tensor,
    layer_x: Tensor,
    slot_ptr: Tensor,
    layer_ptr: Tensor,
    *,
    connects: Tensor,
    connects_ptr: Tensor,
    monitors: Tensor,
    monitors_ptr: Tensor,
) -> GraphBatch:
    """Return a batch with all edge types, derived from its stored columns.

    Args:
        context_x, slot_x, layer_x: features, see ``GraphBatch``.
        slot_ptr, layer_ptr, connects_ptr, monitors_ptr: offsets int64 [N + 1].
        connects: int64 [2, E] in batch numbering, sorted by graph: source layer, target layer.
        monitors: int64 [2, E] in batch numbering, sorted by graph: slot, layer.
    """
    slot_graph, layer_graph = row_owners(slot_ptr, len(slot_x)), row_owners(layer_ptr, len(layer_x))
    slots = torch.arange(len(slot_x), device=slot_x.device)
    layers = torch.arange(len(layer_x), device=layer_x.device)
    from_layers, from_slots = torch.stack([layers, layer_graph]), torch.stack([slots, slot_graph])
    edges = (connects, monitors, monitors.flip(0), from_layers, from_slots, from_layers.flip(0), from_slots.flip(0))
    return GraphBatch(
        context_x,
        slot_x,
        layer_x,
        slot_ptr,
        layer_ptr,
        dict(zip(EDGE_TYPES, edges, strict=True)),
        connects_ptr,
        monitors_ptr,
    )
