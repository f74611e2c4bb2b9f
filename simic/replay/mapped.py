"""Memory-mapped columns of a snapshot that exceeds the memory limit, written to files once, in chunks.

The folder is named by the snapshot's digest and split, and is rebuilt from the snapshot when it is damaged. States
precede final states, as in memory, so that batches are identical.

Shapes: N steps, E sequences, R graph rows.
"""

from __future__ import annotations

import logging
import mmap
import shutil
import tempfile
from contextlib import closing
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]
from numpy.typing import NDArray
from pydantic import ValidationError

from simic.contracts.base import Contract
from simic.contracts.batches import Observations
from simic.contracts.errors import ContractError, IntegrityError
from simic.contracts.file_digest import FileDigest
from simic.contracts.results.receipts import SnapshotManifest
from simic.controllers.features import FEATURE_VERSION, encode
from simic.replay.batch import CHILDREN, COLUMNS, ColumnarExperience, ptr_name
from simic.replay.graph_table import GraphTable
from simic.replay.rows import EpisodeBatch, Sequences, episode_batch_of, read_parts
from simic.runtime.files import publish_dir, sha256_file
from simic.runtime.locks import exclusive
from simic.trust.canonical import canonical_bytes, digest_of

__all__ = [
    "ColumnWriter",
    "ColumnsManifest",
    "MappedColumns",
    "Pages",
    "map_column",
    "map_snapshot",
    "publish_columns",
    "release_pages",
    "verify_columns",
]

MANIFEST_NAME = "columns.json"
SUFFIX = ".npy"


class ColumnsManifest(Contract):
    """The files of a folder of columns."""

    key: str
    """Digest of the inputs and the format of the columns."""
    files: list[FileDigest]


class ColumnWriter:
    """Appends to columns in NumPy files; ``close`` updates the headers."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._files: dict[str, IO[bytes]] = {}
        self._rows: dict[str, int] = {}
        self._like: dict[str, NDArray[Any]] = {}

    def append(self, name: str, values: NDArray[Any]) -> None:
        """Append rows [R, ...] to a column; shape and dtype of a row never change."""
        if name not in self._files:
            self._files[name] = (self._folder / f"{name}{SUFFIX}").open("wb+")
            self._rows[name], self._like[name] = 0, values[:0].copy()
            self._write_header(name)
        like = self._like[name]
        if values.dtype != like.dtype or values.shape[1:] != like.shape[1:]:
            raise ValueError(f"{name}: rows of {like.dtype} {like.shape[1:]}, found {values.dtype} {values.shape[1:]}")
        self._files[name].write(np.ascontiguousarray(values).data)
        self._rows[name] += len(values)

    def rows(self, name: str) -> int:
        """Return the number of rows written to a column."""
        return self._rows.get(name, 0)

    def close(self) -> None:
        """Finish and close every file."""
        for name, file in self._files.items():
            file.seek(0)
            self._write_header(name)
            file.close()
        self._files = {}

    def _write_header(self, name: str) -> None:
        """Return a header of unchanged length: NumPy reserves room for the first dimension to grow."""
        like = self._like[name]
        header = {
            "descr": np.lib.format.dtype_to_descr(like.dtype),
            "fortran_order": False,
            "shape": (self._rows[name], *like.shape[1:]),
        }
        np.lib.format.write_array_header_1_0(self._files[name], header)


def publish_columns(built: Path, target: Path, key: str) -> None:
    """Write the manifest of a finished folder and durably rename the folder to ``target``.

    Raises OSError if there is no space, or if ``target`` exists: callers hold a lock and removed it.
    """
    files = [
        FileDigest(name=path.name, sha256=sha256_file(path), size_bytes=path.stat().st_size)
        for path in sorted(built.iterdir())
    ]
    (built / MANIFEST_NAME).write_bytes(canonical_bytes(ColumnsManifest(key=key, files=files)))
    publish_dir(built, target)


def verify_columns(folder: Path, key: str) -> None:
    """Raise IntegrityError unless every file is as published, under the same key."""
    try:
        manifest = ColumnsManifest.model_validate_json((folder / MANIFEST_NAME).read_bytes())
    except (OSError, ValidationError) as error:
        raise IntegrityError(
            f"{folder} is not a folder of columns: {MANIFEST_NAME} cannot be read ({error})"
        ) from error
    if manifest.key != key:
        raise IntegrityError(f"{folder} holds columns of {manifest.key}, expected {key}")
    for file in manifest.files:
        path = folder / file.name
        if not path.is_file() or sha256_file(path) != file.sha256:
            raise IntegrityError(f"{path} is not what was written: expected SHA-256 {file.sha256}")


def map_column(folder: Path, name: str) -> NDArray[Any]:
    """Map a column of a verified folder, copy on write."""
    path = folder / f"{name}{SUFFIX}"
    array: NDArray[Any] = np.load(path, mmap_mode="c", allow_pickle=False)
    return array


def release_pages(column: NDArray[Any]) -> None:
    """Release the memory of a mapped column; the next access reads the file again."""
    if isinstance(base := column.base, mmap.mmap):
        base.madvise(mmap.MADV_DONTNEED)


_LOG = logging.getLogger(__name__)
_FORMAT = 2
_CHUNK_ROWS = 8192
"""Steps converted at a time."""
_BUILDING = ".building-"
LOCK_WAIT_S = 1800.0
"""Longest wait for another process that writes columns."""
_SEQUENCES_NAME = "sequences.arrow"
_FIRST_OF = {child: columns[0] for child, columns in CHILDREN.items()}
_WHOLE_NUMBERS = ("host_keys", "starts", "lengths", "branch_steps")
_SEQUENCE_SCHEMA = pa.schema(
    [(name, pa.int64() if name in _WHOLE_NUMBERS else pa.string()) for name in Sequences._fields]
)
_PAGE_BYTES = 64 * 1024
"""Assumed bytes per access of a mapped file: the kernel also maps cached neighbours."""


class MappedColumns(NamedTuple):
    """The mapped columns of an open folder."""

    sequences: Sequences
    arrays: dict[str, NDArray[Any]]

    def flat(self) -> ColumnarExperience:
        """Return tensors that share the mapping."""
        return ColumnarExperience.of(self.arrays)

    def maps(self) -> list[NDArray[Any]]:
        """Return the mapped arrays."""
        return list(self.arrays.values())


class Pages:
    """Bounds the resident memory of mapped columns: releases all pages when the budget is used up."""

    def __init__(self, maps: list[NDArray[Any]], graphs: int, max_bytes: int) -> None:
        """``graphs`` is the number of graph rows; each is assumed to touch its share of all columns and edges."""
        self._maps, self.max_bytes = maps, max_bytes
        self._row_bytes = sum(array.nbytes for array in maps) // max(1, graphs) + 1
        self._resident = 0

    def touched(self, sequences: int, rows: int) -> None:
        """Count the pages of a batch, assuming that every sequence touches other pages of every column."""
        self._resident += sequences * len(self._maps) * _PAGE_BYTES + rows * self._row_bytes
        if self._resident > self.max_bytes:
            for array in self._maps:
                release_pages(array)
            self._resident = 0


def map_snapshot(manifest: SnapshotManifest, split: str, blueprints: tuple[str, ...], folder: Path) -> MappedColumns:
    """Map the columns of a split from ``folder``, which is built first if it is missing or damaged.

    Only one process at a time does so in the parent of ``folder``, ``data/columns`` of a home, because leftovers of
    killed processes there are removed. The others wait for it, at most ``LOCK_WAIT_S`` seconds; its lock is in
    ``.locks`` beside that parent.

    Raises:
        TransientError: if another process still writes columns after that time.
        ContractError: if the rows are no whole episodes, or the split has none.
    """
    key = digest_of([_FORMAT, FEATURE_VERSION, folder.name, list(blueprints), manifest.gamma])
    folder = folder.with_name(f"{folder.name}-{key[:12]}")
    cache = folder.parent
    with exclusive(cache.with_name(".locks") / cache.name, "the mapping of snapshots", LOCK_WAIT_S):
        return _mapped(manifest, split, blueprints, folder, key)


def _mapped(
    manifest: SnapshotManifest, split: str, blueprints: tuple[str, ...], folder: Path, key: str
) -> MappedColumns:
    if folder.exists():
        try:
            verify_columns(folder, key)
            return _open(folder)
        except IntegrityError as error:
            _LOG.warning("%s; rebuilding it from the snapshot", error)
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
                part = episode_batch_of(table, blueprints, manifest.gamma)
                sequences.append(part.sequences)
                _append_graphs(columns, part.states)
                _append_graphs(finals, part.finals)
                _append_steps(columns, part)
        if not sequences:
            raise ContractError(f"{manifest.path} has no rows of split {split!r}")
        _append_finals(columns, aside)
    shutil.rmtree(aside)
    with pa.OSFile(str(building / _SEQUENCES_NAME), "wb") as sink, pa.ipc.new_file(sink, _SEQUENCE_SCHEMA) as file:
        file.write_table(_sequence_table(sequences))


def _append_graphs(writer: ColumnWriter, observations: Observations) -> None:
    table = GraphTable.of(encode(observations))
    for child, first in _FIRST_OF.items():
        ptr = getattr(table, ptr_name(child)).numpy()
        if not writer.rows(ptr_name(child)):
            writer.append(ptr_name(child), ptr[:1])
        writer.append(ptr_name(child), ptr[1:] + writer.rows(first))
    for name in ("context_x", "slot_x", "layer_x", "connects", "monitors"):
        writer.append(name, getattr(table, name).numpy())


def _append_steps(writer: ColumnWriter, part: EpisodeBatch) -> None:
    for name, values in part.steps._asdict().items():
        writer.append(name, values.numpy())
    for name in ("op", "slot", "blueprint"):
        writer.append(f"mask_{name}", getattr(part.masks, name))


def _append_finals(writer: ColumnWriter, aside: Path) -> None:
    """Append the final states after all states, block by block."""
    offsets = {ptr_name(child): writer.rows(first) for child, first in _FIRST_OF.items()}
    for name in ("context_x", "slot_x", "layer_x", "connects", "monitors", *offsets):
        values = map_column(aside, name)
        first = int(name in offsets)
        for at in range(first, len(values), _CHUNK_ROWS):
            writer.append(name, values[at : at + _CHUNK_ROWS] + values.dtype.type(offsets.get(name, 0)))


def _sequence_table(parts: list[Sequences]) -> pa.Table:
    """Yield one row per episode; raise ContractError if an episode occurs in two places."""
    run_ids = [run_id for part in parts for run_id in part.run_ids]
    if len(set(run_ids)) != len(run_ids):
        raise ContractError("rows must be whole episodes in order; the rows of one run are in two places")
    lengths = np.concatenate([part.lengths for part in parts])
    columns = {
        "run_ids": run_ids,
        **{
            name: [text for part in parts for text in getattr(part, name)]
            for name in ("policy_versions", "controllers", "sets", "families", "branch_of")
        },
        **{name: np.concatenate([getattr(part, name) for part in parts]) for name in ("host_keys", "branch_steps")},
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
