"""Graphs as flat columns whose edges are numbered within their graph.

Unlike a ``GraphBatch`` as a table, nothing here depends on what stands before it: columns can be appended to, moved
and mapped from a file as they are. Batches taken from both are the same.
Shapes: N graphs, S slot nodes, L layer nodes, E edges of a type, F features, B graphs of a batch.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from simic.controllers.graph import EDGE_TYPES, GraphBatch, build, ragged_rows

__all__ = ["CONNECTS", "MONITORS", "GraphSource", "GraphTable", "local_edges", "spans"]

CONNECTS, MONITORS = EDGE_TYPES[:2]


class GraphSource(Protocol):
    """What batches of graphs can be taken from."""

    @property
    def slot_ptr(self) -> Tensor:
        """int64 [N + 1]: which slots belong to which graph."""

    @property
    def graphs(self) -> int:
        """N."""

    def take(self, rows: Tensor) -> GraphBatch:
        """The graphs ``rows`` int64 [B], in that order and with repeats."""


class GraphTable(NamedTuple):
    """N graphs; a batch is gathered from them and numbered anew."""

    context_x: Tensor
    """float32 [N, F]"""
    slot_x: Tensor
    """float32 [S, F]"""
    layer_x: Tensor
    """float32 [L, F]"""
    connects: Tensor
    """int32 [E, 2]: source and target layer, counted within the graph."""
    monitors: Tensor
    """int32 [E, 2]: slot and layer, counted within the graph."""
    slot_ptr: Tensor
    """int64 [N + 1]"""
    layer_ptr: Tensor
    """int64 [N + 1]"""
    connects_ptr: Tensor
    """int64 [N + 1]"""
    monitors_ptr: Tensor
    """int64 [N + 1]"""

    @property
    def graphs(self) -> int:
        """N."""
        return int(self.context_x.shape[0])

    def take(self, rows: Tensor) -> GraphBatch:
        """The graphs ``rows`` int64 [B], in that order and with repeats, as a batch of their own."""
        slots, slot_ptr = ragged_rows(self.slot_ptr, rows)
        layers, layer_ptr = ragged_rows(self.layer_ptr, rows)
        connects, connects_ptr = ragged_rows(self.connects_ptr, rows)
        monitors, monitors_ptr = ragged_rows(self.monitors_ptr, rows)
        layer_of_connect = torch.repeat_interleave(layer_ptr[:-1], connects_ptr.diff(), output_size=len(connects))
        first = torch.stack([slot_ptr[:-1], layer_ptr[:-1]])
        of_monitor = torch.repeat_interleave(first, monitors_ptr.diff(), dim=1, output_size=len(monitors))
        return build(
            self.context_x[rows],
            self.slot_x[slots],
            self.layer_x[layers],
            slot_ptr,
            layer_ptr,
            connects=self.connects[connects].t() + layer_of_connect,
            connects_ptr=connects_ptr,
            monitors=self.monitors[monitors].t() + of_monitor,
            monitors_ptr=monitors_ptr,
        )

    def to(self, device: torch.device) -> GraphTable:
        """The same table on another device."""
        return GraphTable(*(column.to(device) for column in self))


def local_edges(graphs: GraphBatch) -> tuple[Tensor, Tensor]:
    """``connects`` and ``monitors`` of a batch as int32 [E, 2], counted within their graphs."""
    layers = torch.repeat_interleave(graphs.layer_ptr[:-1], graphs.connects_ptr.diff())
    first = torch.stack([graphs.slot_ptr[:-1], graphs.layer_ptr[:-1]])
    both = torch.repeat_interleave(first, graphs.monitors_ptr.diff(), dim=1)
    connects, monitors = graphs.edges[CONNECTS] - layers, graphs.edges[MONITORS] - both
    return connects.t().to(torch.int32), monitors.t().to(torch.int32)


def spans(starts: NDArray[np.int64], counts: NDArray[np.int64]) -> NDArray[np.int64]:
    """``starts[i] .. starts[i] + counts[i] - 1`` for every i, one after the other."""
    before = np.cumsum(counts) - counts
    positions: NDArray[np.int64] = np.repeat(starts - before, counts) + np.arange(int(counts.sum()))
    return positions
