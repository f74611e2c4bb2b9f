"""The parts of the lake that a snapshot links, and the rows read from them.

States are most of a report and never change, so a snapshot does not copy them. It hard-links the parts that hold its
rows: links take no disk space, and later changes of the lake (compaction, retention) do not remove rows. If no hard
link can be made, because the part lies on another file system or on S3, the part is copied.

``row_index.parquet`` has one row per row of ``steps.parquet``, in the same order: the part's index in the manifest's
``ledger_parts``, and the row in that part.
"""

from __future__ import annotations

import tempfile
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from fnmatch import fnmatchcase
from pathlib import Path

import duckdb
import pyarrow as pa  # type: ignore[import-untyped]

from simic.contracts.errors import ContractError, IntegrityError, TransientError
from simic.contracts.results.receipts import SnapshotManifest
from simic.lake.duck import ROW_ID_STRIDE, connect, create_parquet_view, create_table
from simic.lake.duck_views import create_evolved_view
from simic.lake.lake import Lake, open_lake
from simic.lake.log import Part
from simic.lake.schema import LANDED_SCHEMA
from simic.lake.store import LocalParts, link
from simic.runtime.files import scratch_dir, sha256_file
from simic.runtime.home import Home

__all__ = [
    "REJECTED_NAME",
    "ROW_INDEX_NAME",
    "STEPS_NAME",
    "is_linked_part",
    "link_parts",
    "linked_parts",
    "read_rows",
    "unlink_unused",
]

STEPS_NAME, ROW_INDEX_NAME, REJECTED_NAME = "steps.parquet", "row_index.parquet", "rejected.parquet"
_PARTS = "part-*.parquet"
_LATER_COLUMNS = "SELECT NULL::VARCHAR AS branch_of, NULL::BIGINT AS branch_step WHERE false"
"""Columns that ``steps.parquet`` of an earlier version may lack; they are null there."""
_MEMORY_LIMIT_MB = 2048
_THREADS = 2


class _LinkedParts(LocalParts):
    """Parts in one folder without subfolders."""

    def path(self, name: str) -> Path:
        return self.root / Path(name).name


def is_linked_part(name: str) -> bool:
    """Return whether a file of a snapshot is a part of the lake that it links."""
    return fnmatchcase(name, _PARTS)


def link_parts(lake: Lake, folder: Path, others: Iterable[Path] = ()) -> Lake:
    """Link all live parts of the lake into ``folder`` and verify them; return the lake that reads them there.

    Args:
        lake: source of the parts.
        folder: existing folder of the new snapshot.
        others: folders of snapshots that may have a part already, which saves a copy where the lake is on S3 or on
            another file system.

    Raises:
        IntegrityError: if a part is damaged.
        TransientError: if a part left the lake meanwhile.
    """
    store, known = _LinkedParts(folder), [_LinkedParts(other) for other in others]
    is_near = _are_linkable(lake, folder)
    for part in lake.parts:
        target = store.path(part.part)
        if is_near or not any(_link_from(other.path(part.part), target, part) for other in known):
            _fetch(lake, part, target)
        elif isinstance(lake.store, LocalParts):
            with _missing_explained(lake, part):
                _verify(lake, part, lake.store.path(part.part))
    return replace(lake, store=store)


def _are_linkable(lake: Lake, folder: Path) -> bool:
    """Return whether parts can be linked into ``folder``; between two mounts of one file system they cannot."""
    if not isinstance(lake.store, LocalParts) or not lake.parts:
        return False
    probe = folder / "probe"
    try:
        is_linked = link(lake.store.path(lake.parts[0].part), probe)
    except OSError:
        return True  # fetching the part says what is wrong with it
    probe.unlink(missing_ok=True)
    return is_linked


def _link_from(path: Path, target: Path, part: Part) -> bool:
    """Link the part of another snapshot if it is intact, and return whether it was."""
    if not path.exists() or not link(path, target):
        return False
    if sha256_file(target) == part.sha256:
        return True
    target.unlink()
    return False


def _fetch(lake: Lake, part: Part, target: Path) -> None:
    with _missing_explained(lake, part):
        lake.store.fetch(part.part, target)
    _verify(lake, part, target)


@contextmanager
def _missing_explained(lake: Lake, part: Part) -> Iterator[None]:
    place = f"{lake.store.place}/{part.part}"
    try:
        yield
    except FileNotFoundError as error:
        if part.part not in {live.part for live in open_lake(lake.home).parts}:
            raise TransientError(f"{place} was merged or dropped meanwhile; try again") from error
        raise IntegrityError(
            f"{place} is listed in the ledger but the file does not exist; see `simic doctor`"
        ) from error


def _verify(lake: Lake, part: Part, path: Path) -> None:
    """Raise IntegrityError, which names the part in the lake, unless ``path`` holds the part as it was committed."""
    place = f"{lake.store.place}/{part.part}"
    if (size := path.stat().st_size) != part.size_bytes:
        raise IntegrityError(f"{place}: expected {part.size_bytes} bytes, found {size}; see `simic doctor`")
    if (digest := sha256_file(path)) != part.sha256:
        raise IntegrityError(f"{place}: expected SHA-256 {part.sha256}, found {digest}; see `simic doctor --deep`")


def unlink_unused(folder: Path, used: Iterable[str]) -> None:
    """Delete the links in ``folder`` to parts that are not in ``used``; ``used`` holds names of the lake."""
    wanted = {Path(name).name for name in used}
    for path in folder.glob(_PARTS):
        if path.name not in wanted:
            path.unlink()


def read_rows(
    manifest: SnapshotManifest,
    split: str,
    snapshot_columns: Sequence[str],
    report_columns: Sequence[str],
    *,
    batch_rows: int,
    limit: int | None = None,
) -> Generator[pa.RecordBatch, None, None]:
    """Yield the rows of ``split``, sorted by (run_id, step) in bounded memory.

    The first batch is empty, so that the columns are known even if there are no rows.

    Args:
        manifest: the snapshot.
        split: train, validation or test.
        snapshot_columns: columns of ``steps.parquet``.
        report_columns: columns of the reports in the linked parts.
        batch_rows: rows per batch.
        limit: most rows; None for all.

    Raises:
        IntegrityError: if ``row_index.parquet`` points to the wrong report.
        ContractError: if the snapshot is of another version.
    """
    folder = Path(manifest.path)
    if not any(file.name == ROW_INDEX_NAME for file in manifest.sources):
        raise ContractError(
            f"snapshot {folder} was made by an earlier version and does not list its source files: "
            "run `simic curate` again"
        )
    try:
        with (
            _spill_dir(folder) as tmp,
            connect(
                tmp=Path(tmp),
                memory_limit_mb=_MEMORY_LIMIT_MB,
                threads=_THREADS,
                what=f"sorting the rows of {folder}",
                remedy="ask for fewer columns, or for fewer rows with a limit",
            ) as connection,
        ):
            _create_relations(connection, folder, manifest)
            rows = connection.sql(_rows_sql(snapshot_columns, report_columns, limit), params={"split": split})
            reader = rows.to_arrow_reader(batch_rows)
            yield _found(pa.RecordBatch.from_pylist([], reader.schema), folder)
            for batch in reader:
                yield _found(batch, folder)
    except duckdb.BinderException as error:
        raise ContractError(f"snapshot {folder} is of another version: {error}; run `simic curate` again") from error
    except duckdb.Error as error:
        raise IntegrityError(f"the rows of snapshot {folder} cannot be read: {error}") from error


def _spill_dir(folder: Path) -> AbstractContextManager[Path | str]:
    """Return a directory for rows that do not fit in memory: in the home of the snapshot, which has room for it.

    The path is also looked at as it is given, because ``data`` and ``snapshots`` may be symbolic links. A snapshot that
    lies elsewhere spills into the system's own directory, which may be small or in memory.
    """
    prefix = "rows-"
    for place in (folder.absolute(), folder.resolve()):
        root = place.parents[2] if len(place.parents) > 2 else place.parent
        home = Home(root)
        if root / home.snapshots.relative_to(home.root) == place.parent:
            return scratch_dir(home, prefix)
    return tempfile.TemporaryDirectory(prefix=f"simic-{prefix}")


def linked_parts(manifest: SnapshotManifest) -> dict[int, Path]:
    """Return the files of the lake that a snapshot links, by their index in the ledger, ascending."""
    sources, names = {file.name for file in manifest.sources}, [Path(name).name for name in manifest.ledger_parts]
    return {index: Path(manifest.path) / name for index, name in enumerate(names) if name in sources}


def _create_relations(connection: duckdb.DuckDBPyConnection, folder: Path, manifest: SnapshotManifest) -> None:
    """Create the relations of the query.

    ``steps`` and ``row_index`` are paired by their ``row_id``; ``linked`` has the rows of all linked parts; ``parts``
    maps the index of a part in the ledger to its index among the linked ones.
    """
    linked = linked_parts(manifest)
    create_evolved_view(connection, "linked", list(linked.values()), LANDED_SCHEMA, with_row_ids=True)
    numbers = pa.table({"part": list(linked), "number": range(len(linked))})
    create_table(connection, "parts", numbers.cast(pa.schema([("part", pa.int64()), ("number", pa.int64())])))
    for name in (STEPS_NAME, ROW_INDEX_NAME):
        create_parquet_view(connection, Path(name).stem, [folder / name], pa.schema([]), with_row_ids=True)


def _rows_sql(snapshot_columns: Sequence[str], report_columns: Sequence[str], limit: int | None) -> str:
    columns = [*(f'wanted."{name}"' for name in snapshot_columns), *(f'linked."{name}"' for name in report_columns)]
    return f"""
        WITH wanted AS (
            SELECT steps.* EXCLUDE (row_id), parts.number * {ROW_ID_STRIDE} + row_index."row" AS row_id
            FROM (FROM steps UNION ALL BY NAME {_LATER_COLUMNS}) AS steps
            LEFT JOIN row_index USING (row_id)
            LEFT JOIN parts USING (part)
            WHERE split = $split
            {"" if limit is None else f"ORDER BY run_id, step LIMIT {limit:d}"}
        )
        SELECT {", ".join(columns)}, coalesce(
            linked.report_id = wanted.report_id AND linked.content_digest[1:32]::UUID = wanted.content_id, false
        ) AS is_found
        FROM wanted LEFT JOIN linked USING (row_id)
        ORDER BY wanted.run_id, wanted.step
    """  # noqa: S608 - names are those of columns


def _found(batch: pa.RecordBatch, folder: Path) -> pa.RecordBatch:
    is_found = batch.column("is_found")
    if is_found.false_count:
        raise IntegrityError(
            f"snapshot {folder}: {is_found.false_count} rows are not where {ROW_INDEX_NAME} says; "
            "run `simic curate` again"
        )
    return batch.drop_columns(["is_found"])
