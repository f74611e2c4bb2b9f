"""Comparison of two snapshots, row by row, in bounded memory."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import duckdb
import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]

from simic.contracts.errors import IntegrityError, TransientError
from simic.contracts.results.receipts import SnapshotManifest
from simic.contracts.results.snapshots import Change, EpisodeCounts, GroupDifference, RowCounts, SnapshotDifference
from simic.lake.duck import connect, exactly
from simic.snapshots.manifest import SETTINGS_NAME, read_manifest

__all__ = ["compare"]

_KEY = ("run_id", "step")
_GROUP = ("split", "controller", "family")
_SIDES = ("only_a", "only_b", "changed", "same")
_MANIFEST_FIELDS = (
    "reward_family",
    "gamma",
    "code_version",
    "config_digest",
    "ledger_digest",
    "rows_in",
    "rows_out",
    "episodes",
)


class _Limits(NamedTuple):
    tmp: Path
    memory_limit_mb: int
    threads: int


def compare(
    a: Path, b: Path, *, tmp: Path, examples: int = 10, memory_limit_mb: int = 2048, threads: int = 2
) -> SnapshotDifference:
    """Compare the snapshots at ``a`` and ``b``; rows are paired by (run_id, step).

    Names at most ``examples`` episodes per kind of difference. Nested columns are compared by a 64-bit hash of the
    value, others by the value itself. Larger snapshots spill to ``tmp``.

    Raises:
        IntegrityError: if a snapshot is damaged.
    """
    manifests = read_manifest(a), read_manifest(b)
    columns = [pq.read_schema(path / "steps.parquet") for path in (a, b)]
    shared = [name for name in columns[0].names if name in columns[1].names and name not in _KEY]
    try:
        rows = _compare_rows(a, b, columns[0], shared, examples, _Limits(tmp, memory_limit_mb, threads))
    except duckdb.IOException as error:
        raise TransientError(f"comparing could not read or write: {error}") from error
    reasons = sorted(manifests[0].rejected.keys() | manifests[1].rejected.keys())
    return SnapshotDifference(
        a=manifests[0].digest,
        b=manifests[1].digest,
        manifest=list(_changes(*(_manifest_fields(manifest) for manifest in manifests))),
        settings=list(_changes(*(_settings(path) for path in (a, b)))),
        has_same_rules=manifests[0].sql_digest == manifests[1].sql_digest,
        columns_only_a=[name for name in columns[0].names if name not in columns[1].names],
        columns_only_b=[name for name in columns[1].names if name not in columns[0].names],
        rejected={
            reason: (manifests[0].rejected.get(reason, 0), manifests[1].rejected.get(reason, 0)) for reason in reasons
        },
        **rows,
    )


def _compare_rows(
    a: Path, b: Path, schema: pa.Schema, shared: list[str], examples: int, limits: _Limits
) -> dict[str, Any]:
    with connect(
        tmp=limits.tmp,
        memory_limit_mb=limits.memory_limit_mb,
        threads=limits.threads,
        what="comparing",
        remedy="compare smaller snapshots",
    ) as connection:
        connection.execute("SET preserve_insertion_order = false")
        for side, path in (("a", a), ("b", b)):
            columns = ", ".join(_comparable(schema, name) for name in shared)
            listed = exactly(path / "steps.parquet").replace("'", "''")
            connection.execute(f"CREATE VIEW {side} AS SELECT run_id, step, {columns} FROM read_parquet('{listed}')")  # noqa: S608
        connection.execute(f"CREATE TABLE episodes AS {_episodes_sql(shared)}")
        return {
            "groups": _groups(connection),
            "rows": RowCounts(**_totals(connection, [f"sum(rows_{side})" for side in _SIDES])),
            "episodes": EpisodeCounts(**_totals(connection, [f"count_if(is_{side})" for side in _SIDES])),
            "changed_columns": _changed_columns(connection, shared),
            **{f"episodes_{side}": _examples(connection, side, examples) for side in ("only_a", "only_b", "changed")},
        }


def _comparable(schema: pa.Schema, name: str) -> str:
    """Return SQL for a column; nested values are hashed, because the join would keep them in memory."""
    quoted = f'"{name}"'
    return f"hash({quoted}) AS {quoted}" if pa.types.is_nested(schema.field(name).type) else quoted


def _episodes_sql(shared: list[str]) -> str:
    """Return SQL for one row per episode: its group, its rows per side, and per column the rows that differ."""
    other = [f'a."{name}" IS DISTINCT FROM b."{name}"' for name in shared]
    group = ", ".join(f"coalesce(any_value(a.{name}), any_value(b.{name})) AS {name}" for name in _GROUP)
    both = "a.run_id IS NOT NULL AND b.run_id IS NOT NULL"
    per_column = ", ".join(
        f'count_if({both} AND {test})::BIGINT AS "other_{name}"' for name, test in zip(shared, other, strict=True)
    )
    return f"""
        WITH counted AS (
            SELECT
                coalesce(a.run_id, b.run_id) AS run_id, {group},
                count_if(b.run_id IS NULL)::BIGINT AS rows_only_a,
                count_if(a.run_id IS NULL)::BIGINT AS rows_only_b,
                count_if({both} AND ({" OR ".join(other)}))::BIGINT AS rows_changed,
                count_if({both} AND NOT ({" OR ".join(other)}))::BIGINT AS rows_same,
                {per_column}
            FROM a FULL JOIN b ON a.run_id = b.run_id AND a.step = b.step
            GROUP BY 1
        )
        SELECT
            *,
            rows_only_b + rows_changed + rows_same = 0 AS is_only_a,
            rows_only_a + rows_changed + rows_same = 0 AS is_only_b,
            rows_only_a + rows_only_b + rows_changed = 0 AS is_same,
            NOT (is_only_a OR is_only_b OR is_same) AS is_changed
        FROM counted
    """  # noqa: S608 - names are those of columns


def _totals(connection: duckdb.DuckDBPyConnection, sums: list[str]) -> dict[str, int]:
    row = connection.execute(f"SELECT {', '.join(sums)} FROM episodes").fetchall()[0]  # noqa: S608
    return {side: int(value or 0) for side, value in zip(_SIDES, row, strict=True)}


def _groups(connection: duckdb.DuckDBPyConnection) -> list[GroupDifference]:
    sums = [f"count_if(is_{side})" for side in _SIDES] + [f"sum(rows_{side})" for side in _SIDES]
    names = ", ".join(_GROUP)
    sql = f"SELECT {names}, {', '.join(sums)} FROM episodes GROUP BY ALL ORDER BY {names}"  # noqa: S608
    return [
        GroupDifference(
            **dict(zip(_GROUP, row[:3], strict=True)),
            episodes=EpisodeCounts(**dict(zip(_SIDES, row[3:7], strict=True))),
            rows=RowCounts(**dict(zip(_SIDES, map(int, row[7:]), strict=True))),
        )
        for row in connection.execute(sql).fetchall()
    ]


def _changed_columns(connection: duckdb.DuckDBPyConnection, shared: list[str]) -> dict[str, int]:
    sums = ", ".join(f'sum("other_{name}")' for name in shared)
    row = connection.execute(f"SELECT {sums} FROM episodes").fetchall()[0]  # noqa: S608
    return {name: int(count) for name, count in zip(shared, row, strict=True) if count}


def _examples(connection: duckdb.DuckDBPyConnection, side: str, limit: int) -> list[str]:
    sql = f"SELECT run_id FROM episodes WHERE is_{side} ORDER BY run_id LIMIT {limit:d}"  # noqa: S608
    return [row[0] for row in connection.execute(sql).fetchall()]


def _manifest_fields(manifest: SnapshotManifest) -> dict[str, Any]:
    return {**{name: getattr(manifest, name) for name in _MANIFEST_FIELDS}, "parts": len(manifest.ledger_parts)}


def _settings(path: Path) -> dict[str, Any]:
    try:
        return dict(_flat(json.loads((path / SETTINGS_NAME).read_text("utf-8")), ""))
    except (OSError, ValueError) as error:
        raise IntegrityError(
            f"{path / SETTINGS_NAME} cannot be read: {error}; `simic snapshots verify` lists all damage, "
            "`simic curate` makes the snapshot again"
        ) from error


def _flat(value: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, Any]]:
    """Yield ``{"a": {"b": 1}}`` as ``("a.b", 1)``."""
    for name, item in value.items():
        if isinstance(item, Mapping):
            yield from _flat(item, f"{prefix}{name}.")
        else:
            yield prefix + name, item


def _changes(a: Mapping[str, Any], b: Mapping[str, Any]) -> Iterator[Change]:
    for name in sorted(a.keys() | b.keys()):
        if a.get(name) != b.get(name):
            yield Change(name=name, a=a.get(name), b=b.get(name))
