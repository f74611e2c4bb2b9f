"""A snapshot at hand: columns of steps, one table of graphs, and batches gathered from both.

In memory, on a GPU, or mapped from files where it is larger than memory may be; the batches are the same.
Shapes: N steps, E sequences (episodes), T time, B sequences of a batch, A heads, K blueprints.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from simic.contracts.actions import Head, Op
from simic.contracts.batches import HEAD_INDEX, OP_INDEX
from simic.contracts.errors import ContractViolation
from simic.contracts.receipts import SnapshotManifest
from simic.controllers.features import encode
from simic.controllers.graph import GraphBatch
from simic.controllers.heads import MaskTensors
from simic.replay.assemble import Places, Steps, assemble
from simic.replay.batch import SequenceBatch
from simic.replay.columns import join
from simic.replay.graphs import GraphTable
from simic.replay.manifest import read_manifest
from simic.replay.mapped import MappedColumns, Pages, map_snapshot
from simic.replay.rows import Sequences, part_of, read_first, read_split

__all__ = ["GraphStore", "Steps"]

_SAMPLE_ROWS = 2048
"""Rows from which the size of a whole snapshot is estimated."""
_STATISTICS_GRAPHS = 50_000
"""Graphs of a mapped table that stand for all of it in feature statistics."""


class GraphStore:
    """Whole episodes of one split; features are encoded once, batches are gathered."""

    def __init__(
        self,
        sequences: Sequences,
        steps: Steps,
        masks: MaskTensors,
        table: GraphBatch | GraphTable,
        blueprints: tuple[str, ...],
        pages: Pages | None = None,
    ) -> None:
        """``table`` holds N + E graphs: all states, then the final state of each sequence."""
        self.sequences, self.steps, self.masks, self.table = sequences, steps, masks, table
        self.blueprints, self._pages = blueprints, pages
        if table.graphs != len(steps.rewards) + len(self):
            raise ContractViolation(f"{table.graphs} graphs for {len(steps.rewards)} steps and {len(self)} sequences")

    @staticmethod
    def load(
        path: Path,
        split: str = "train",
        *,
        blueprints: tuple[str, ...],
        max_bytes: int | None = None,
        cache: Path | None = None,
    ) -> GraphStore:
        """The episodes of ``split`` in the snapshot at ``path``, after its files were checked against its manifest.

        ``blueprints`` is the vocabulary of the hosts. With a ``cache`` folder, columns that would take more than
        ``max_bytes`` are written there once and mapped, and about as many of their bytes stay resident at most.
        Raises IntegrityError for a file that is not what was snapshotted and ContractViolation for rows that cannot
        teach: gaps, missing propensities, missing final states.
        """
        manifest = read_manifest(path)
        if cache is not None and max_bytes is not None:
            size = _estimated_bytes(manifest, split, blueprints)
            if size > max_bytes:
                name = f"{manifest.digest}-{split}"
                columns = map_snapshot(manifest, split, blueprints, cache / name)
                return GraphStore._of_columns(columns, blueprints, max_bytes)
        part = part_of(read_split(manifest, split), blueprints, manifest.gamma)
        table = encode(join(part.states, part.finals))
        return GraphStore(part.sequences, part.steps, MaskTensors.of(part.masks), table, blueprints)

    @staticmethod
    def _of_columns(columns: MappedColumns, blueprints: tuple[str, ...], max_bytes: int) -> GraphStore:
        flat = columns.flat()
        pages = Pages(columns.maps(), flat.table.graphs, max_bytes)
        return GraphStore(columns.sequences, flat.steps, flat.masks, flat.table, blueprints, pages)

    @property
    def is_mapped(self) -> bool:
        """Whether the columns lie in files and only what was touched lately is in memory."""
        return self._pages is not None

    def to(self, device: torch.device) -> GraphStore:
        """The same store with every column resident on ``device``; batches are assembled there."""
        steps = Steps(*(column.to(device) for column in self.steps))
        masks = MaskTensors(*(mask.to(device) for mask in self.masks))
        return GraphStore(self.sequences, steps, masks, self.table.to(device), self.blueprints)

    def __len__(self) -> int:
        return len(self.sequences.run_ids)

    @property
    def step_count(self) -> int:
        """N"""
        return len(self.steps.rewards)

    @property
    def set_name(self) -> str:
        """The world of all episodes; ContractViolation if there is not exactly one."""
        names = sorted(set(self.sequences.sets))
        if len(names) != 1:
            raise ContractViolation(f"a policy is trained for one world, the episodes come from {names}")
        return names[0]

    @property
    def germinated(self) -> tuple[str, ...]:
        """Blueprints that any episode germinated, in the order of the vocabulary."""
        is_germination = self.steps.actions[:, HEAD_INDEX[Head.OP]] == OP_INDEX[Op.GERMINATE]
        seen = set(self.steps.actions[is_germination, HEAD_INDEX[Head.BLUEPRINT]].tolist())
        return tuple(name for index, name in enumerate(self.blueprints) if index in seen)

    @property
    def size_bytes(self) -> int:
        """Bytes of all tensors, in memory or mapped."""
        graphs = [x for x in self.table if isinstance(x, Tensor)]
        edges = list(self.table.edges.values()) if isinstance(self.table, GraphBatch) else []
        tensors = [*graphs, *edges, *self.steps, *self.masks]
        return sum(tensor.numel() * tensor.element_size() for tensor in tensors)

    def batch(self, sequence_ids: NDArray[np.int64]) -> SequenceBatch:
        """The given sequences, in the given order, as one time-major batch."""
        places = self.places(sequence_ids)
        batch = assemble(sequence_ids, places, self.steps, self.masks, self.table)
        if self._pages is not None:
            self._pages.touched(len(sequence_ids), int(places.lengths.sum()))
        return batch

    def statistics_graphs(self) -> GraphBatch:
        """Graphs for feature statistics: all, or of a mapped table some, evenly spaced."""
        if isinstance(self.table, GraphBatch):
            return self.table
        count = min(self.table.graphs, _STATISTICS_GRAPHS)
        return self.table.take(torch.linspace(0, self.table.graphs - 1, count, dtype=torch.float64).round().long())

    def places(self, sequence_ids: NDArray[np.int64]) -> Places:
        """Where the given sequences lie in ``steps`` and ``table``."""
        chosen = self.sequences.starts[sequence_ids], self.sequences.lengths[sequence_ids]
        return Places(*chosen, self.step_count + sequence_ids)


def _estimated_bytes(manifest: SnapshotManifest, split: str, blueprints: tuple[str, ...]) -> int:
    """Of all rows, from those of the first episodes."""
    first = read_first(manifest, split, _SAMPLE_ROWS)
    if not first.num_rows:
        return 0
    part = part_of(first, blueprints, manifest.gamma)
    store = GraphStore(
        part.sequences, part.steps, MaskTensors.of(part.masks), encode(join(part.states, part.finals)), blueprints
    )
    return store.size_bytes * manifest.rows_out // int(first.num_rows)
