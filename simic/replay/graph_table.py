"""Stored graphs as flat columns whose edges are numbered within their graph.

No column depends on the rows before it, so columns can be appended to, moved and memory-mapped. ``GraphTable.take``
gathers rows into a ``GraphBatch``, which numbers edges over the batch.
Shapes: N graphs, S slot nodes, L layer nodes, E edges of a type, F features, B graphs of a batch.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from simic.controllers.graph import CONNECTS, MONITORS, GraphBatch, GraphSizes, build
from simic.numerics.ragged import ragged_rows

__all__ = ["GraphTable", "rows_at"]


class GraphTable(NamedTuple):
    """N graphs in storage."""

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

    @staticmethod
    def of(batch: GraphBatch) -> GraphTable:
        """Return the graphs of a batch, with edges numbered within their graph; features share memory."""
        layers = torch.repeat_interleave(batch.layer_ptr[:-1], batch.connects_ptr.diff())
        first = torch.stack([batch.slot_ptr[:-1], batch.layer_ptr[:-1]])
        both = torch.repeat_interleave(first, batch.monitors_ptr.diff(), dim=1)
        connects, monitors = batch.edges[CONNECTS] - layers, batch.edges[MONITORS] - both
        return GraphTable(
            batch.context_x,
            batch.slot_x,
            batch.layer_x,
            connects.t().to(torch.int32).contiguous(),
            monitors.t().to(torch.int32).contiguous(),
            batch.slot_ptr,
            batch.layer_ptr,
            batch.connects_ptr,
            batch.monitors_ptr,
        )

    @property
    def graphs(self) -> int:
        """Return N, the number of graphs."""
        return int(self.context_x.shape[0])

    def select(self, rows: Tensor) -> GraphTable:
        """Return the graphs ``rows`` int64 [B] as a table of their own, in that order and with repeats.

        ``rows`` and offsets lie in host memory, so no size is read from a device.
        """
        slots, slot_ptr = ragged_rows(self.slot_ptr, rows)
        layers, layer_ptr = ragged_rows(self.layer_ptr, rows)
        connects, connects_ptr = ragged_rows(self.connects_ptr, rows)
        monitors, monitors_ptr = ragged_rows(self.monitors_ptr, rows)
        return GraphTable(
            rows_at(self.context_x, rows),
            rows_at(self.slot_x, slots),
            rows_at(self.layer_x, layers),
            rows_at(self.connects, connects),
            rows_at(self.monitors, monitors),
            slot_ptr,
            layer_ptr,
            connects_ptr,
            monitors_ptr,
        )

    def take(self, rows: Tensor) -> GraphBatch:
        """Return the graphs ``rows`` int64 [B] as a batch, in that order and with repeats."""
        return self.select(rows).to_batch()

    def to_batch(self) -> GraphBatch:
        """Return all graphs as one batch, with edges numbered over the batch."""
        connects, monitors = len(self.connects), len(self.monitors)
        offsets = (self.slot_ptr, self.layer_ptr, self.connects_ptr, self.monitors_ptr)
        slot_ptr, layer_ptr, connects_ptr, monitors_ptr = (ptr.to(self.context_x.device) for ptr in offsets)
        layers = torch.repeat_interleave(layer_ptr[:-1], connects_ptr.diff(), output_size=connects)
        first = torch.stack([slot_ptr[:-1], layer_ptr[:-1]])
        both = torch.repeat_interleave(first, monitors_ptr.diff(), dim=1, output_size=monitors)
        return build(
            self.context_x,
            self.slot_x,
            self.layer_x,
            slot_ptr,
            layer_ptr,
            connects=self.connects.t() + layers,
            connects_ptr=connects_ptr,
            monitors=self.monitors.t() + both,
            monitors_ptr=monitors_ptr,
        )

    def sizes(self, count: int) -> GraphSizes:
        """Return the numbers of rows and edges of the first ``count`` graphs."""
        offsets = (self.slot_ptr, self.layer_ptr, self.connects_ptr, self.monitors_ptr)
        return GraphSizes(*(int(ptr[count]) for ptr in offsets))

    def to(self, device: torch.device) -> GraphTable:
        """Return the same table with features and edges on another device; offsets stay in host memory."""
        names = ("context_x", "slot_x", "layer_x", "connects", "monitors")
        return self._replace(**{name: getattr(self, name).to(device) for name in names})


def rows_at(column: Tensor, rows: Tensor) -> Tensor:
    """Return the ``rows`` [B], in host memory, of a column on any device."""
    return column[rows.to(column.device)]
