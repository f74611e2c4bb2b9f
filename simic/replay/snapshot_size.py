"""How much memory the columns of a snapshot take, from its list lengths; producers choose which rows come first."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]
from numpy.typing import NDArray

from simic.contracts.batches import Observations
from simic.contracts.results.receipts import SnapshotManifest
from simic.controllers.features import encode
from simic.controllers.heads import MaskTensors
from simic.replay.decode import column
from simic.replay.graph_table import GraphTable
from simic.replay.rows import episode_batch_of, read_first, read_parts
from simic.snapshots.parts import STEPS_NAME, linked_parts

__all__ = ["exceeds"]

_SAMPLE_ROWS = 64
"""Number of rows that show what a row of each column takes."""
_COUNTED_ROWS = 8192
"""Number of rows whose states are in memory at once while a snapshot is measured."""
_PTRS, _PTR_BYTES = 4, 8
"""Offsets of a graph in a ``GraphTable``, and the bytes of one."""
_LISTS = (("slots",), ("graph", "layers"), ("graph", "connects"), ("graph", "monitors"))
"""Lists of a state that have rows of their own in a ``GraphTable``."""
_STATES = ("state", "final_state")


def exceeds(manifest: SnapshotManifest, split: str, blueprints: tuple[str, ...], max_bytes: int) -> bool:
    """Return whether the columns of all rows take more than ``max_bytes``.

    Footers of the files bound the lengths from above, and mostly suffice; else states are read until they exceed it.
    """
    units = _unit_bytes(manifest, split, blueprints)
    size, most = _PTRS * _PTR_BYTES, _most(manifest)
    has_each_once = pq.read_metadata(Path(manifest.path) / STEPS_NAME).num_rows <= most[0]
    if has_each_once and size + int(units @ most) <= max_bytes:
        return False
    for rows in read_parts(manifest, split, _COUNTED_ROWS, _STATES):
        size += int(units @ _counts(rows))
        if size > max_bytes:
            return True
    return False


def _most(manifest: SnapshotManifest) -> NDArray[np.int64]:
    """Return upper bounds of ``_counts`` from the footers of all linked files, whatever the snapshot takes of them."""
    steps, lengths = 0, np.zeros((len(_STATES), len(_LISTS)), np.int64)
    for path in linked_parts(manifest):
        footer = pq.read_metadata(path)
        steps += footer.num_rows
        leaves = [footer.schema.column(index).path for index in range(footer.num_columns)]
        for told, state in enumerate(_STATES):
            for place, names in enumerate(_LISTS):
                below = ".".join((state, *names, ""))
                leaf = next((index for index, name in enumerate(leaves) if name.startswith(below)), None)
                if leaf is not None:  # a file of an earlier version may lack a column
                    groups = (footer.row_group(group) for group in range(footer.num_row_groups))
                    lengths[told, place] += sum(group.column(leaf).num_values for group in groups)
    slots, layers, connects, monitors = lengths.sum(0).tolist()
    return np.array([steps, 2 * steps, int(lengths[0, 0]), slots, layers, connects + monitors], np.int64)


def _counts(rows: pa.Table) -> NDArray[np.int64]:
    """Return int64 [6]: steps, graphs, slots of the steps, and slots, layers and edges of all graphs."""
    states, finals = (column(rows, name) for name in _STATES)
    of_steps, of_finals = (
        [pc.sum(pc.list_value_length(pc.struct_field(told, list(place)))).as_py() or 0 for place in _LISTS]
        for told in (states, finals)
    )
    slots, layers, connects, monitors = (sum(pair) for pair in zip(of_steps, of_finals, strict=True))
    graphs = len(states) + len(finals) - finals.null_count
    return np.array([len(states), graphs, of_steps[0], slots, layers, connects + monitors], np.int64)


def _unit_bytes(manifest: SnapshotManifest, split: str, blueprints: tuple[str, ...]) -> NDArray[np.int64]:
    """Return int64 [6]: the bytes that each of ``_counts`` takes, by the columns of the first episodes."""
    part = episode_batch_of(read_first(manifest, split, _SAMPLE_ROWS), blueprints, manifest.gamma)
    masks = MaskTensors.of(part.masks)
    table = GraphTable.of(encode(Observations.join([part.states, part.finals])))
    columns = (
        [*part.steps, masks.op, masks.blueprint],
        [table.context_x],
        [masks.slot],
        [table.slot_x],
        [table.layer_x],
        [table.connects],
    )
    units = [sum(values.element_size() * math.prod(values.shape[1:]) for values in group) for group in columns]
    units[1] += _PTRS * _PTR_BYTES
    return np.array(units, np.int64)
