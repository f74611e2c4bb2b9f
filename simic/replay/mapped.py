"""A snapshot larger than memory may be: its columns are written to files once, a chunk at a time, and mapped.

The folder is named by the snapshot's digest and split, and made again when it is damaged, for all of it follows from
the snapshot. States stand in front of final states, as in memory, so that batches are the same bit for bit.
Shapes: N steps, E sequences, R graph rows.
"""

from __future__ import annotations

import logging
import shutil
import tempfile
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]
from numpy.typing import NDArray

from simic.contracts.batches import Observations
from simic.contracts.errors import ContractViolation, IntegrityError
from simic.contracts.receipts import SnapshotManifest
from simic.controllers.features import FEATURE_VERSION, encode
from simic.replay.files import ColumnWriter, map_column, publish_columns, release_pages, verify_columns
from simic.replay.flat import CHILDREN, COLUMNS, Flat, ptr_name
from simic.replay.graphs import local_edges
from simic.replay.rows import Part, Sequences, part_of, read_parts
from simic.trust.canonical import digest_of

__all__ = ["MappedColumns", "Pages", "map_snapshot"]

_LOG = logging.getLogger(__name__)
_FORMAT = 1
_CHUNK_ROWS = 8192
"""Steps converted at a time."""
_BUILDING = ".building-"
_SEQUENCES_NAME = "sequences.arrow"
_FIRST_OF = {child: columns[0] for child, columns in CHILDREN.items()}
_SEQUENCE_SCHEMA = pa.schema(
    [(name, pa.int64() if name in {"host_keys", "starts", "lengths"} else pa.string()) for name in Sequences._fields]
)
_PAGE_BYTES = 64 * 1024
"""What one touch of a mapped file may bring in: the kernel maps neighbours that it has at hand."""


class MappedColumns(NamedTuple):
    """An open folder."""

    sequences: Sequences
    arrays: dict[str, NDArray[Any]]

    def flat(self) -> Flat:
        """As tensors that share the mapping; only what is touched is read."""
        return Flat.of(self.arrays)

    def maps(self) -> list[NDArray[Any]]:
        """The mapped arrays."""
        return list(self.arrays.values())


class Pages:
    """Keeps what a mapped store holds in memory within a budget, by letting go of all of it when that is used up."""

    def __init__(self, maps: list[NDArray[Any]], graphs: int, max_bytes: int) -> None:
        """``graphs`` is the number of graph rows; what a row touches is its share of every column, edges included."""
        self._maps, self._max_bytes = maps, max_bytes
        self._row_bytes = sum(array.nbytes for array in maps) // max(1, graphs) + 1
        self._resident = 0

    def touched(self, sequences: int, rows: int) -> None:
        """Account for a batch, generously: every sequence touches every column in another place."""
        self._resident += sequences * len(self._maps) * _PAGE_BYTES + rows * self._row_bytes
        if self._resident > self._max_bytes:
            for array in self._maps:
                release_pages(array)
            self._resident = 0


def map_snapshot(manifest: SnapshotManifest, split: str, blueprints: tuple[str, ...], folder: Path) -> MappedColumns:
    """The columns of a split, mapped from ``folder``, which is made first where it is missing or damaged.

    The caller sees to it that nobody else writes beside ``folder``: what a killed process left there is removed.
    """
    key = digest_of([_FORMAT, FEATURE_VERSION, folder.name, list(blueprints), manifest.gamma])
    folder = folder.with_name(f"{folder.name}-{key[:12]}")
    if folder.exists():
        try:
            verify_columns(folder, key)
            return _open(folder)
        except IntegrityError as error:
            _LOG.warning("%s; it is made again from the snapshot", error)
            shutil.rmtree(folder)
    folder.parent.mkdir(parents=True, exist_ok=True)
    for left in folder.parent.glob(f"{_BUILDING}*"):
        shutil.rmtree(left, ignore_errors=True)
    building = Path(tempfile.mkdtemp(prefix=_BUILDING, dir=folder.parent))
    try:
        _write(building, manifest, split, blueprints)
        publish_columns(building, folder, key)
    finally:
        shutil.rmtree(building, ignore_errors=True)
    return _open(folder)


def _write(building: Path, manifest: SnapshotManifest, split: str, blueprints: tuple[str, ...]) -> None:
    aside = building / "finals"
    aside.mkdir()
    sequences: list[Sequences] = []
    with closing(ColumnWriter(building)) as columns:
        with closing(ColumnWriter(aside)) as finals:
            for table in read_parts(manifest, split, _CHUNK_ROWS):
                part = part_of(table, blueprints, manifest.gamma)
                sequences.append(part.sequences)
                _append_graphs(columns, part.states)
                _append_graphs(finals, part.finals)
                _append_steps(columns, part)
        if not sequences:
            raise ContractViolation(f"{manifest.path} has no rows of split {split!r}")
        _append_finals(columns, aside)
    shutil.rmtree(aside)
    with pa.OSFile(str(building / _SEQUENCES_NAME), "wb") as sink, pa.ipc.new_file(sink, _SEQUENCE_SCHEMA) as file:
        file.write_table(_sequence_table(sequences))


def _append_graphs(writer: ColumnWriter, observations: Observations) -> None:
    graphs = encode(observations)
    connects, monitors = local_edges(graphs)
    for child, first in _FIRST_OF.items():
        ptr = getattr(graphs, ptr_name(child)).numpy()
        if not writer.rows(ptr_name(child)):
            writer.append(ptr_name(child), ptr[:1])
        writer.append(ptr_name(child), ptr[1:] + writer.rows(first))
    for name in ("context_x", "slot_x", "layer_x"):
        writer.append(name, getattr(graphs, name).numpy())
    writer.append("connects", connects.numpy())
    writer.append("monitors", monitors.numpy())


def _append_steps(writer: ColumnWriter, part: Part) -> None:
    for name, values in part.steps._asdict().items():
        writer.append(name, values.numpy())
    for name in ("op", "slot", "blueprint"):
        writer.append(f"mask_{name}", getattr(part.masks, name))


def _append_finals(writer: ColumnWriter, aside: Path) -> None:
    """Behind all states, block by block."""
    offsets = {ptr_name(child): writer.rows(first) for child, first in _FIRST_OF.items()}
    for name in ("context_x", "slot_x", "layer_x", "connects", "monitors", *offsets):
        values = map_column(aside, name)
        first = int(name in offsets)
        for at in range(first, len(values), _CHUNK_ROWS):
            writer.append(name, values[at : at + _CHUNK_ROWS] + values.dtype.type(offsets.get(name, 0)))


def _sequence_table(parts: list[Sequences]) -> pa.Table:
    """One row per episode; ContractViolation if one stands in two places."""
    run_ids = [run_id for part in parts for run_id in part.run_ids]
    if len(set(run_ids)) != len(run_ids):
        raise ContractViolation("rows must be whole episodes in order; a run's rows stand in two places")
    lengths = np.concatenate([part.lengths for part in parts])
    columns = {
        "run_ids": run_ids,
        **{
            name: [text for part in parts for text in getattr(part, name)]
            for name in ("policy_versions", "controllers", "sets", "families")
        },
        "host_keys": np.concatenate([part.host_keys for part in parts]),
        "starts": np.cumsum(lengths) - lengths,
        "lengths": lengths,
    }
    return pa.table(columns, schema=_SEQUENCE_SCHEMA)


def _open(folder: Path) -> MappedColumns:
    with pa.memory_map(str(folder / _SEQUENCES_NAME)) as source:
        table = pa.ipc.open_file(source).read_all()
    values: dict[str, Any] = {
        name: table.column(name).to_numpy() if table.schema.field(name).type == pa.int64() else _texts(table, name)
        for name in Sequences._fields
    }
    names = (*COLUMNS, *(ptr_name(child) for child in CHILDREN))
    return MappedColumns(Sequences(**values), {name: map_column(folder, name) for name in names})


def _texts(table: pa.Table, name: str) -> tuple[str | None, ...]:
    return tuple(table.column(name).to_pylist())
