"""The training data set of a snapshot: columns of steps, one table of graphs, and batches from both.

Columns are in memory, or mapped from files if they exceed the memory limit; a GPU may have a copy of those in memory.
Batches are identical.

Shapes: N steps, E sequences (episodes), T time, B sequences of a batch, A heads, K blueprints.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from functools import cached_property
from pathlib import Path

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]
import torch
from numpy.typing import NDArray

from simic.contracts.actions import Head, Op
from simic.contracts.batches import HEAD_INDEX, OP_INDEX, Observations
from simic.contracts.errors import ContractError
from simic.contracts.results.receipts import SnapshotManifest
from simic.controllers.features import encode
from simic.controllers.graph import GraphBatch, NodeFeatures
from simic.controllers.heads import MaskTensors
from simic.numerics.ragged import ragged_rows
from simic.replay.batch import ColumnarExperience, SequenceBatch, SequenceSpans, Steps, assemble
from simic.replay.decode import column
from simic.replay.difficulty import difficulty_of
from simic.replay.graph_table import GraphTable, rows_at
from simic.replay.mapped import MappedColumns, Pages, map_snapshot
from simic.replay.policy_lag import policy_lags
from simic.replay.rows import Sequences, episode_batch_of, read_first, read_parts, read_split
from simic.snapshots.manifest import read_manifest
from simic.snapshots.parts import STEPS_NAME, linked_parts

__all__ = ["GraphDataset", "Steps"]

_SAMPLE_ROWS = 64
"""Number of rows that show what a row of each column takes."""
_COUNTED_ROWS = 8192
"""Number of rows whose states are in memory at once while a snapshot is measured."""
_PTRS, _PTR_BYTES = 4, 8
"""Offsets of a graph in a ``GraphTable``, and the bytes of one."""
_LISTS = (("slots",), ("graph", "layers"), ("graph", "connects"), ("graph", "monitors"))
"""Lists of a state that have rows of their own in a ``GraphTable``."""
_STATES = ("state", "final_state")
_PART_GRAPHS = 8192
"""Largest number of graphs that are gathered at once."""
_STATISTICS_GRAPHS = 50_000
"""Number of graphs of a mapped table used for feature statistics."""


class GraphDataset:
    """Whole episodes of one split; features are encoded once, batches are gathered."""

    def __init__(
        self,
        sequences: Sequences,
        steps: Steps,
        masks: MaskTensors,
        table: GraphTable,
        blueprints: tuple[str, ...],
        pages: Pages | None = None,
        lags: NDArray[np.float64] | None = None,
        snapshot: SnapshotManifest | None = None,
    ) -> None:
        """Wrap columns; ``table`` holds N + E graphs: all states, then the final state of each sequence.

        ``lags`` [E] are those of ``policy_lags``; None knows none.
        """
        self.sequences, self.steps, self.masks, self.table = sequences, steps, masks, table
        self.blueprints, self._pages, self._lags, self._snapshot = blueprints, pages, lags, snapshot
        self.device = steps.rewards.device
        """Device of the batches."""
        self._gathered = ColumnarExperience(steps, masks, table)
        if table.graphs != len(steps.rewards) + len(self):
            raise ContractError(f"{table.graphs} graphs for {len(steps.rewards)} steps and {len(self)} sequences")

    @staticmethod
    def load(
        path: Path,
        split: str = "train",
        *,
        blueprints: tuple[str, ...],
        max_bytes: int | None = None,
        cache: Path | None = None,
    ) -> GraphDataset:
        """Load the episodes of ``split`` from a snapshot whose files match its manifest.

        ``blueprints`` is the vocabulary of the hosts. With a ``cache`` folder, columns that would exceed ``max_bytes``
        are written there once and mapped; at most about ``max_bytes`` of them stay resident.

        Raises:
            IntegrityError: if a file differs from the manifest.
            ContractError: for rows that cannot be trained on: gaps, missing propensities, missing final states.
        """
        return GraphDataset.of_snapshot(
            read_manifest(path), split, blueprints=blueprints, max_bytes=max_bytes, cache=cache
        )

    @staticmethod
    def of_snapshot(
        manifest: SnapshotManifest,
        split: str = "train",
        *,
        blueprints: tuple[str, ...],
        max_bytes: int | None = None,
        cache: Path | None = None,
    ) -> GraphDataset:
        """Load the episodes of a snapshot whose files ``read_manifest`` just verified; see ``load``."""
        if cache is not None and max_bytes is not None and _exceeds(manifest, split, blueprints, max_bytes):
            name = f"{manifest.digest}-{split}"
            columns = map_snapshot(manifest, split, blueprints, cache / name)
            return GraphDataset._of_columns(columns, manifest, blueprints, max_bytes)
        part = episode_batch_of(read_split(manifest, split), blueprints, manifest.gamma)
        table = GraphTable.of(encode(Observations.join([part.states, part.finals])))
        lags = policy_lags(manifest, part.sequences.run_ids)
        masks = MaskTensors.of(part.masks)
        return GraphDataset(part.sequences, part.steps, masks, table, blueprints, lags=lags, snapshot=manifest)

    @staticmethod
    def _of_columns(
        columns: MappedColumns, manifest: SnapshotManifest, blueprints: tuple[str, ...], max_bytes: int
    ) -> GraphDataset:
        flat, lags = columns.flat(), policy_lags(manifest, columns.sequences.run_ids)
        pages = Pages(columns.maps(), flat.table.graphs, max_bytes)
        return GraphDataset(columns.sequences, flat.steps, flat.masks, flat.table, blueprints, pages, lags, manifest)

    def to(self, device: torch.device, *, is_resident: bool = True) -> GraphDataset:
        """Return the data set with its batches on ``device``; its own columns stay where they are.

        With ``is_resident``, batches are assembled on the device from a copy of the columns, else in host memory, and
        sent.
        """
        own = (self.sequences, self.steps, self.masks, self.table, self.blueprints)
        moved = GraphDataset(*own, self._pages, self._lags, self._snapshot)
        moved.device = device
        if is_resident:
            moved._gathered = moved._gathered.to(device)
        return moved

    @property
    def is_mapped(self) -> bool:
        """Return whether the columns are mapped from files."""
        return self._pages is not None

    def __len__(self) -> int:
        return len(self.sequences.run_ids)

    @cached_property
    def ordinary(self) -> NDArray[np.int64]:
        """Return the sequences that off-policy learning may use.

        The action of a branch was not drawn, and the episodes that branches repeat follow a policy without exploration.
        """
        hosts = list(zip(self.sequences.sets, self.sequences.host_keys.tolist(), strict=True))
        repeated = {(of, host) for of, host in zip(self.sequences.branch_of, hosts, strict=True) if of is not None}
        episodes = zip(self.sequences.branch_of, self.sequences.run_ids, hosts, strict=True)
        return np.flatnonzero([of is None and (own, host) not in repeated for of, own, host in episodes])

    @cached_property
    def has_end(self) -> NDArray[np.bool_]:
        """Return bool [E]: sequences whose episode ended by itself; the return of another one is not known."""
        last = self.sequences.starts + self.sequences.lengths - 1
        is_end: NDArray[np.bool_] = (self.steps.discounts[torch.from_numpy(last)] == 0).numpy()
        return is_end

    @cached_property
    def difficulty(self) -> NDArray[np.float64]:
        """Return [E]: how hard each sequence's host is among those of its set, 0 to 1; NaN if curation did not rank it.

        Raises:
            ContractError: if the data come from no snapshot, or from one without difficulties.
        """
        if self._snapshot is None:
            raise ContractError("these data come from no snapshot, so nobody has ranked their hosts by difficulty")
        return difficulty_of(self._snapshot, self.sequences)

    @property
    def step_count(self) -> int:
        """Return N, the number of steps."""
        return len(self.steps.rewards)

    @property
    def sets(self) -> tuple[str, ...]:
        """Return the host sets of all episodes, sorted."""
        return tuple(sorted(set(self.sequences.sets)))

    @property
    def germinated(self) -> tuple[str, ...]:
        """Return the blueprints that any episode germinated, in index order."""
        is_germination = self.steps.actions[:, HEAD_INDEX[Head.OP]] == OP_INDEX[Op.GERMINATE]
        seen = set(self.steps.actions[is_germination, HEAD_INDEX[Head.BLUEPRINT]].tolist())
        return tuple(name for index, name in enumerate(self.blueprints) if index in seen)

    @property
    def size_bytes(self) -> int:
        """Return the bytes of all tensors, in memory or mapped."""
        tensors = [*self.table, *self.steps, *self.masks]
        return sum(tensor.numel() * tensor.element_size() for tensor in tensors)

    @property
    def memory_bytes(self) -> int:
        """Return the most bytes of columns that are in memory at once: all, or what is allowed of mapped ones."""
        return self.size_bytes if self._pages is None else min(self.size_bytes, self._pages.max_bytes)

    def batch(self, sequence_ids: NDArray[np.int64]) -> SequenceBatch:
        """Return the given sequences, in that order, as one time-major batch."""
        spans = self.spans(sequence_ids)
        batch = replace(assemble(sequence_ids, spans, *self._gathered), policy_lag=self._lag_of(sequence_ids))
        if self._pages is not None:
            self._pages.touched(len(sequence_ids), int(spans.lengths.sum()))
        return batch if batch.valid.device == self.device else batch.to(self.device)

    def _lag_of(self, sequence_ids: NDArray[np.int64]) -> float | None:
        known = np.zeros(0) if self._lags is None else self._lags[sequence_ids]
        known = known[~np.isnan(known)]
        return float(known.mean()) if len(known) else None

    def states(self, rows: NDArray[np.int64]) -> tuple[GraphBatch, MaskTensors]:
        """Return the graphs and masks of the steps ``rows`` [B], in that order."""
        _, own, table = self._gathered
        chosen = torch.from_numpy(rows)
        slots, _ = ragged_rows(table.slot_ptr, chosen)
        masks = MaskTensors(rows_at(own.op, chosen), rows_at(own.slot, slots), rows_at(own.blueprint, chosen))
        if self._pages is not None:
            self._pages.touched(len(rows), len(rows))
        graphs = table.take(chosen)
        if graphs.context_x.device == self.device:
            return graphs, masks
        return graphs.to(self.device), MaskTensors(*(mask.to(self.device) for mask in masks))

    def steps_at(self, rows: NDArray[np.int64]) -> Steps:
        """Return the columns of the steps ``rows`` [B], in that order, on the device of the batches."""
        chosen = torch.from_numpy(rows)
        return Steps(*(rows_at(column, chosen).to(self.device) for column in self._gathered.steps))

    def graphs(self) -> Iterator[NodeFeatures]:
        """Yield all graphs, final states included, in parts of at most ``_PART_GRAPHS``."""
        for first in range(0, self.table.graphs, _PART_GRAPHS):
            count = min(_PART_GRAPHS, self.table.graphs - first)
            if self._pages is not None:
                self._pages.touched(1, count)
            yield self.table.select(torch.arange(first, first + count))

    def statistics_graphs(self) -> NodeFeatures:
        """Return graphs for feature statistics: all, or an evenly spaced sample of a mapped table."""
        if self._pages is None:
            return self.table
        count = min(self.table.graphs, _STATISTICS_GRAPHS)
        return self.table.select(torch.linspace(0, self.table.graphs - 1, count, dtype=torch.float64).round().long())

    def spans(self, sequence_ids: NDArray[np.int64]) -> SequenceSpans:
        """Return the positions of the given sequences in ``steps`` and ``table``."""
        chosen = self.sequences.starts[sequence_ids], self.sequences.lengths[sequence_ids]
        return SequenceSpans(*chosen, self.step_count + sequence_ids)


def _exceeds(manifest: SnapshotManifest, split: str, blueprints: tuple[str, ...], max_bytes: int) -> bool:
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
    for path in linked_parts(manifest).values():
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
