"""Compaction: small parts are merged into one with the same rows in the same order, by one ledger line.

Only adjacent parts of one period and one schema are merged, so the order of rows in the lake does not change. The
period is the UTC month in which they landed, or the UTC day where parts are dropped by age: retention drops whole parts
by their newest row, so the period is how much longer an old row may stay. Files of merged parts are deleted once no
query can be reading them; see ``retention.vacuum``.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]

from simic.contracts.errors import IntegrityError, TransientError
from simic.lake.arrow_reader import categorical_columns
from simic.lake.lake import Lake
from simic.lake.log import MOST_SOURCES, Input, Part, Replaced
from simic.lake.parts import check_part, part_name, store_part, synced

__all__ = ["COMPACT_TMP", "MergeLimits", "merge", "plan_merges"]

COMPACT_TMP = "compact"
"""Folder below the home's tmp that only the holder of the lake's lock uses."""
_BATCH_ROWS = 2048
_GROUP_ROWS = 16_384
_GROUP_BYTES = 64 * 1024 * 1024
"""Rows and bytes at which a row group ends; this much, uncompressed, is in memory at once."""


class MergeLimits(NamedTuple):
    """Sizes, in bytes of files, that decide which parts are merged."""

    small_bytes: int
    target_bytes: int
    least_parts: int = 2
    """Fewer adjacent small parts than this are not merged, unless their month is over."""
    is_daily: bool = False
    """Whether the period is a day instead of a month."""

    def period(self, part: Part) -> str:
        """Return the period in which the rows of a part landed; a part that was merged lies within one."""
        day = _day(part)
        return day if self.is_daily else day[: len("2026-01")]


def plan_merges(parts: Sequence[Part], limits: MergeLimits) -> list[list[Part]]:
    """Return disjoint runs of adjacent small parts to be merged, in order; pure."""
    runs: list[list[Part]] = [[]]
    size_bytes = 0
    for part in parts:
        run = runs[-1]
        is_small = part.size_bytes < limits.small_bytes
        is_like = not run or (limits.period(run[0]), run[0].schema_digest) == (limits.period(part), part.schema_digest)
        if is_small and is_like and size_bytes < limits.target_bytes:
            run.append(part)
            size_bytes += part.size_bytes
        else:
            runs.append([part] if is_small else [])
            size_bytes = part.size_bytes if is_small else 0
    return [run for run in runs if len(run) >= 2 and (len(run) >= limits.least_parts or _is_over(run, parts, limits))]


def _is_over(run: Sequence[Part], parts: Sequence[Part], limits: MergeLimits) -> bool:
    """Return whether no more parts of the run's month are to be expected, so that waiting for them saves no merge."""
    return not limits.is_daily and limits.period(run[0]) < limits.period(parts[-1])


def merge(
    lake: Lake,
    run: Sequence[Part],
    *,
    at: datetime,
    code_version: str,
    checkpoint: Callable[[str], None] = lambda _point: None,
) -> Lake:
    """Merge one run and commit it, in constant memory; the caller holds the lake's lock.

    ``checkpoint`` is called with ``part-written``, ``part-renamed`` and ``committed``.

    Raises:
        IntegrityError: if a part is damaged, because the merged part would hide that; nothing is changed.
    """
    for part in run:
        check_part(lake.store, part)
    digest = hashlib.sha256("".join(f"{part.part} {part.sha256}\n" for part in run).encode()).hexdigest()
    first_id = Path(run[0].part).name.split("-")[1]
    newest = max(part.landed_at for part in run)
    name = part_name(datetime.fromisoformat(_day(run[0])), f"{first_id}-{digest[:16]}")
    unfinished = lake.home.tmp / COMPACT_TMP / Path(name).name
    rows = _write(lake, run, unfinished)
    expected = sum(part.rows for part in run)
    if rows != expected:
        raise IntegrityError(f"the ledger lists {expected} rows in {len(run)} parts from {run[0].part}, found {rows}")
    written = store_part(unfinished, name, lake.store, checkpoint)
    merged = Part(
        part=written.name,
        rows=rows,
        size_bytes=written.size_bytes,
        sha256=written.sha256,
        sources=sorted({source for part in run for source in part.sources})[:MOST_SOURCES],
        schema_digest=run[0].schema_digest,
        landed_at=newest,
        code_version=code_version,
    )
    inputs = [Input(part=part.part, rows=part.rows, sha256=part.sha256) for part in run]
    after = lake.commit(Replaced(at=at, code_version=code_version, part=merged, inputs=inputs))
    checkpoint("committed")
    return after


def _day(part: Part) -> str:
    return part.part.removeprefix("day=").partition("/")[0]  # folder name of earlier versions


def _write(lake: Lake, run: Sequence[Part], unfinished: Path) -> int:
    rows, writer = 0, None
    with synced(unfinished) as file:
        for table in _groups(_batches(lake, run)):
            writer = writer or pq.ParquetWriter(
                file,
                table.schema,
                compression="zstd",
                compression_level=3,
                store_schema=True,
                use_dictionary=categorical_columns(table.schema),
            )
            writer.write_table(table, row_group_size=table.num_rows)
            rows += table.num_rows
        if writer is not None:
            writer.close()
    return rows


def _batches(lake: Lake, run: Sequence[Part]) -> Iterator[pa.RecordBatch]:
    for part in run:
        try:
            with lake.store.open(part.part) as file:
                yield from pq.ParquetFile(file).iter_batches(batch_size=_BATCH_ROWS, use_threads=False)
        except pa.ArrowInvalid as error:
            raise IntegrityError(f"{lake.store.place}/{part.part} cannot be read: {error}") from error
        except OSError as error:
            raise TransientError(f"cannot read {lake.store.place}/{part.part}: {error}; try again") from error


def _groups(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
    held: list[pa.RecordBatch] = []
    for batch in batches:
        held.append(batch)
        if sum(b.num_rows for b in held) >= _GROUP_ROWS or sum(b.nbytes for b in held) >= _GROUP_BYTES:
            yield pa.Table.from_batches(held)
            held = []
    if held:
        yield pa.Table.from_batches(held)
