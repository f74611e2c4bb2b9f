"""What a snapshot holds of the lake: the parts its rows lie in, and where in them each row lies.

States are most of a report and never change, so a snapshot does not copy them. It holds the parts themselves, under a
second name: no disk is taken, and nothing that happens to the lake later (merging, retention) takes a row away. Where
no second name can be given, on another file system or from S3, the part is copied whole.

``places.parquet`` has a row for each row of ``steps.parquet``, in the same order: the part's index in the manifest's
``ledger_parts``, and the row in it.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from pathlib import Path

import duckdb
import pyarrow as pa  # type: ignore[import-untyped]

from simic.contracts.errors import ContractViolation, IntegrityError, TransientError
from simic.contracts.receipts import SnapshotManifest
from simic.lake.duck import PLACES, connect, create_parquet_view, create_table
from simic.lake.lake import Lake, open_lake
from simic.lake.operations import Part
from simic.lake.parts import file_digest
from simic.lake.relations import create_evolved_view
from simic.lake.schema import LANDED_SCHEMA
from simic.lake.store import LocalParts, link

__all__ = ["PLACES_NAME", "STEPS_NAME", "drop_parts", "hold_parts", "is_held_part", "read_rows"]

STEPS_NAME, PLACES_NAME = "steps.parquet", "places.parquet"
_PARTS = "part-*.parquet"
_MEMORY_LIMIT_MB = 2048
_THREADS = 2


class _HeldParts(LocalParts):
    """Parts in one folder, by the last piece of their names."""

    def path(self, name: str) -> Path:
        return self.root / Path(name).name


def is_held_part(name: str) -> bool:
    """Whether a file of a snapshot is one of the parts it holds."""
    return fnmatchcase(name, _PARTS)


def hold_parts(lake: Lake, folder: Path, others: Iterable[Path] = ()) -> Lake:
    """The lake with all its live parts in ``folder``, read to the last byte; IntegrityError for a damaged one.

    ``others`` are snapshots that may hold some of them already, which saves a download. Raises TransientError where a
    part left the lake meanwhile.
    """
    store, known = _HeldParts(folder), [_HeldParts(other) for other in others]
    is_near = isinstance(lake.store, LocalParts)
    for part in lake.parts:
        target = store.path(part.part)
        if is_near or not any(_borrow(other.path(part.part), target, part) for other in known):
            _fetch(lake, part, target)
    return replace(lake, store=store)


def _borrow(path: Path, target: Path, part: Part) -> bool:
    """Another snapshot's, if it is sound."""
    if not path.exists() or not link(path, target):
        return False
    if is_sound := file_digest(target) == part.sha256:
        return is_sound
    target.unlink()
    return False


def _fetch(lake: Lake, part: Part, target: Path) -> None:
    place = f"{lake.store.place}/{part.part}"
    try:
        lake.store.fetch(part.part, target)
    except FileNotFoundError as error:
        if part.part not in {live.part for live in open_lake(lake.home).parts}:
            raise TransientError(f"{place} was merged or dropped meanwhile; try again") from error
        raise IntegrityError(f"{place} is in the ledger but not there; see `simic doctor`") from error
    if (found := target.stat().st_size) != part.size_bytes:
        raise IntegrityError(f"{place}: expected {part.size_bytes} bytes, found {found}; see `simic doctor`")
    if (digest := file_digest(target)) != part.sha256:
        raise IntegrityError(f"{place}: expected SHA-256 {part.sha256}, found {digest}; see `simic doctor --deep`")


def drop_parts(folder: Path, kept: Iterable[str]) -> None:
    """Lets go of the parts in ``folder`` that are not among ``kept``, which are named as in the lake."""
    wanted = {Path(name).name for name in kept}
    for path in folder.glob(_PARTS):
        if path.name not in wanted:
            path.unlink()


def read_rows(
    manifest: SnapshotManifest,
    split: str,
    kept: Sequence[str],
    told: Sequence[str],
    *,
    batch_rows: int,
    limit: int | None = None,
) -> Iterator[pa.RecordBatch]:
    """The rows of ``split`` by (run_id, step): columns ``kept`` of the snapshot and ``told`` of the reports behind it.

    Sorted in bounded memory; at most ``limit`` rows. The first batch is empty, so that columns are known where there
    are no rows. Raises IntegrityError for a row that does not lie where it is said to lie, and ContractViolation for a
    snapshot of an earlier version.
    """
    folder = Path(manifest.path)
    if not any(file.name == PLACES_NAME for file in manifest.sources):
        raise ContractViolation(
            f"snapshot {folder} is of an earlier version, without sources: run `simic curate` again"
        )
    try:
        with (
            tempfile.TemporaryDirectory(prefix="simic-rows-") as tmp,
            connect(tmp=Path(tmp), memory_limit_mb=_MEMORY_LIMIT_MB, threads=_THREADS) as connection,
        ):
            _create_relations(connection, folder, manifest)
            rows = connection.sql(_rows_sql(kept, told, limit), params={"split": split})
            reader = rows.to_arrow_reader(batch_rows)
            yield _found(pa.RecordBatch.from_pylist([], reader.schema), folder)
            for batch in reader:
                yield _found(batch, folder)
    except duckdb.OutOfMemoryException as error:
        raise TransientError(f"sorting the rows of {folder} needs more than {_MEMORY_LIMIT_MB} MB: {error}") from error
    except duckdb.BinderException as error:
        raise ContractViolation(
            f"snapshot {folder} is of another version: {error}; run `simic curate` again"
        ) from error
    except duckdb.Error as error:
        raise IntegrityError(f"the rows of snapshot {folder} cannot be read: {error}") from error


def _create_relations(connection: duckdb.DuckDBPyConnection, folder: Path, manifest: SnapshotManifest) -> None:
    """``steps`` and ``places``, of which the rows at equal ``place`` belong together; ``held``, the rows of all parts
    held; ``parts``, which of the ledger's parts those are, by number.
    """
    sources = {file.name for file in manifest.sources}
    parts = [Path(name).name for name in manifest.ledger_parts]
    held = [index for index, name in enumerate(parts) if name in sources]
    paths = [folder / parts[index] for index in held]
    create_evolved_view(connection, "held", paths, LANDED_SCHEMA, has_places=True)
    numbers = pa.table({"part": held, "number": range(len(held))})
    create_table(connection, "parts", numbers.cast(pa.schema([("part", pa.int64()), ("number", pa.int64())])))
    for name in (STEPS_NAME, PLACES_NAME):
        create_parquet_view(connection, Path(name).stem, [folder / name], pa.schema([]), has_places=True)


def _rows_sql(kept: Sequence[str], told: Sequence[str], limit: int | None) -> str:
    columns = [*(f'wanted."{name}"' for name in kept), *(f'held."{name}"' for name in told)]
    return f"""
        WITH wanted AS (
            SELECT steps.* EXCLUDE (place), parts.number * {PLACES} + places."row" AS place
            FROM steps
            LEFT JOIN places USING (place)
            LEFT JOIN parts USING (part)
            WHERE split = $split
            {"" if limit is None else f"ORDER BY run_id, step LIMIT {limit:d}"}
        )
        SELECT {", ".join(columns)}, coalesce(
            held.report_id = wanted.report_id AND held.content_digest[1:32]::UUID = wanted.content_id, false
        ) AS is_found
        FROM wanted LEFT JOIN held USING (place)
        ORDER BY wanted.run_id, wanted.step
    """  # noqa: S608 - names are those of columns


def _found(batch: pa.RecordBatch, folder: Path) -> pa.RecordBatch:
    is_found = batch.column("is_found")
    if is_found.false_count:
        raise IntegrityError(
            f"snapshot {folder}: {is_found.false_count} rows are not where {PLACES_NAME} says; run `simic curate` again"
        )
    return batch.drop_columns(["is_found"])
