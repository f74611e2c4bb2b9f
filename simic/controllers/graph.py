"""Host graphs as columns: many graphs in one table, batches assembled by gather.

Shapes: N graphs (one context node each), S slot nodes, L layer nodes, E edges of a type, F features of a node type.
Nodes of one graph are contiguous, and edges are sorted by graph, so offsets are all the bookkeeping there is.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch_geometric.data import HeteroData  # type: ignore[import-untyped]

__all__ = ["EDGE_TYPES", "NODE_TYPES", "EdgeType", "GraphBatch", "build", "owners", "ragged_rows"]

EdgeType = tuple[str, str, str]

NODE_TYPES = ("context", "slot", "layer")
_CONNECTS: EdgeType = ("layer", "connects", "layer")
_MONITORS: EdgeType = ("slot", "monitors", "layer")
_HOSTS: EdgeType = ("layer", "hosts", "slot")
EDGE_TYPES: tuple[EdgeType, ...] = (
    _CONNECTS,
    _MONITORS,
    _HOSTS,
    ("layer", "informs", "context"),
    ("slot", "informs", "context"),
    ("context", "guides", "layer"),
    ("context", "guides", "slot"),
)
"""``hosts`` is ``monitors`` reversed; the context is joined with every other node of its graph, both ways."""


class GraphBatch(NamedTuple):
    """N graphs; edges are numbered over the whole batch. Also the table from which batches are taken."""

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
    """int64 [N + 1]: which ``connects`` edges belong to which graph."""
    monitors_ptr: Tensor
    """int64 [N + 1]: likewise ``monitors`` and ``hosts``."""

    @property
    def graphs(self) -> int:
        """N."""
        return int(self.context_x.shape[0])

    def take(self, rows: Tensor) -> GraphBatch:
        """The graphs ``rows`` int64 [B], in that order and with repeats, as a batch of their own."""
        slots, slot_ptr = ragged_rows(self.slot_ptr, rows)
        layers, layer_ptr = ragged_rows(self.layer_ptr, rows)
        slot_shift = slot_ptr[:-1] - self.slot_ptr[rows]
        layer_shift = layer_ptr[:-1] - self.layer_ptr[rows]
        connects, connects_ptr = ragged_rows(self.connects_ptr, rows)
        monitors, monitors_ptr = ragged_rows(self.monitors_ptr, rows)
        per_connect = torch.repeat_interleave(layer_shift, connects_ptr.diff())
        per_monitor = torch.repeat_interleave(torch.stack([slot_shift, layer_shift]), monitors_ptr.diff(), dim=1)
        return build(
            self.context_x[rows],
            self.slot_x[slots],
            self.layer_x[layers],
            slot_ptr,
            layer_ptr,
            connects=self.edges[_CONNECTS][:, connects] + per_connect,
            connects_ptr=connects_ptr,
            monitors=self.edges[_MONITORS][:, monitors] + per_monitor,
            monitors_ptr=monitors_ptr,
        )

    def to(self, device: torch.device) -> GraphBatch:
        """The same batch on another device."""
        edges = {name: edge.to(device) for name, edge in self.edges.items()}
        moved = {name: value.to(device) for name, value in self._asdict().items() if name != "edges"}
        return GraphBatch(**moved, edges=edges)

    def to_hetero_data(self, row: int) -> HeteroData:
        """One graph in PyG's own form, numbered from 0; collating these equals ``take``."""
        one = self.take(torch.tensor([row], device=self.context_x.device))
        data = HeteroData()
        data["context"].x, data["slot"].x, data["layer"].x = one.context_x, one.slot_x, one.layer_x
        for name, edge in one.edges.items():
            data[name].edge_index = edge
        return data


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
    """A batch from its stored parts; ``connects`` and ``monitors`` int64 [2, E] in batch numbering, sorted by graph."""
    slot_graph, layer_graph = owners(slot_ptr), owners(layer_ptr)
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


def owners(ptr: Tensor) -> Tensor:
    """int64 [rows]: the graph each row of a ragged table belongs to, from its offsets [N + 1]."""
    return torch.repeat_interleave(torch.arange(len(ptr) - 1, device=ptr.device), ptr.diff())


def ragged_rows(ptr: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
    """Flat positions of the given rows of a ragged table, and the offsets [B + 1] of what they make."""
    starts = ptr[rows]
    lengths = ptr[rows + 1] - starts
    out_ptr = torch.zeros(len(rows) + 1, dtype=torch.int64, device=ptr.device)
    torch.cumsum(lengths, 0, out=out_ptr[1:])
    total = int(out_ptr[-1])
    flat = torch.repeat_interleave(starts - out_ptr[:-1], lengths, output_size=total)
    return flat + torch.arange(total, device=ptr.device), out_ptr
