"""The data of a home as Arrow tables: answers to SQL, and the rows of snapshots."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]

from simic.api.home import Home, paths_of
from simic.catalogue.query_process import Limits, ask_parquet
from simic.contracts.errors import ConfigError
from simic.contracts.splits import Split
from simic.runtime.files import scratch_dir
from simic.snapshots.index import find_folder
from simic.snapshots.manifest import read_manifest
from simic.snapshots.parts import STEPS_NAME, read_rows
from simic.snapshots.schema import REPORT_COLUMNS

__all__ = ["read_snapshot", "sql"]

_BATCH_ROWS = 8192


def sql(
    query: str,
    *,
    home: Home | None = None,
    timeout_s: float = Limits().timeout_s,
    memory_mb: int = Limits().memory_mb,
) -> pa.Table:
    """Return the rows of one SELECT over the views of a home, with DuckDB's types; ``.to_pandas()`` gives a frame.

    The query runs in a process of its own, which can read nothing but the views. Their columns are in docs/schema.md.

    Args:
        query: One SELECT (or FROM, DESCRIBE, SHOW, SUMMARIZE).
        home: By default the home that the command line would use.
        timeout_s: Seconds that the query may take, 0.1 to 86,400.
        memory_mb: Megabytes of memory of the query, 64 to 1,048,576; its temporary files may take eight times as much.
            The table that is returned does not count.

    Raises:
        ConfigError: if the SQL is wrong or does more than read, a limit is out of its bounds, or there is no home.
        ResourceLimitError: if the query needs more than its limits.
    """
    paths = paths_of(Home() if home is None else home)
    if not 0.1 <= timeout_s <= 86_400:  # not true of NaN either
        raise ConfigError(f"timeout_s: expected 0.1 to 86,400 seconds, found {timeout_s!r}")
    if type(memory_mb) is not int or not 64 <= memory_mb <= 1_048_576:
        raise ConfigError(f"memory_mb: expected a whole number of 64 to 1,048,576, found {memory_mb!r}")
    with scratch_dir(paths, "sql-") as folder, (folder / "rows.parquet").open("w+b") as file:
        ask_parquet(paths, query, Limits(timeout_s, memory_mb), file)
        file.seek(0)
        return pq.read_table(file)


def read_snapshot(
    digest: str,
    *,
    split: str = Split.TRAIN.value,
    columns: Sequence[str] | None = None,
    home: Home | None = None,
) -> pa.Table:
    """Return the steps of one split of a snapshot, sorted by (run_id, step), after every byte of it was verified.

    Args:
        digest: The first 4 or more characters of the snapshot's digest; `simic snapshots list` shows them.
        split: train, validation or test.
        columns: Names of columns, by default all: those of ``steps.parquet``, and state, final_state, available, action
            and log_prob_behaviour of the reports.
        home: By default the home that the command line would use.

    Raises:
        ConfigError: if no snapshot or several fit, a split or column is unknown, or ``columns`` is empty.
        ContractError: if the snapshot is of another version.
        IntegrityError: if a byte is not as the manifest says.
    """
    if split not in {known.value for known in Split}:
        raise ConfigError(f"unknown split {split!r}; known splits: {', '.join(known.value for known in Split)}")
    if columns is not None and not columns:
        raise ConfigError("columns: expected at least one name, found none; leave it out for all columns")
    manifest = read_manifest(folder := find_folder(paths_of(Home() if home is None else home), digest))
    own = pq.read_schema(folder / STEPS_NAME).names
    known = [*own, *(name for name in REPORT_COLUMNS if name not in own)]
    if unknown := [name for name in columns or () if name not in known]:
        raise ConfigError(f"unknown columns {unknown} of snapshot {manifest.digest[:16]}; known: {', '.join(known)}")
    wanted = list(dict.fromkeys(known if columns is None else columns))
    batches = read_rows(
        manifest,
        split,
        [name for name in wanted if name in own],
        [name for name in wanted if name not in own],
        batch_rows=_BATCH_ROWS,
    )
    return pa.Table.from_batches(list(batches)).select(wanted)
