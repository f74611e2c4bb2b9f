"""Landed reports to a snapshot: the numbered SQL files, in order, on a bounded DuckDB."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from datetime import datetime, timedelta
from pathlib import Path
from typing import NamedTuple

import duckdb
import pyarrow as pa  # type: ignore[import-untyped]

from simic.contracts.config import CurateConfig
from simic.contracts.errors import ConfigError, ContractViolation, IntegrityError, TransientError
from simic.contracts.receipts import PolicyVersion, Provenance, SnapshotManifest
from simic.contracts.splits import TEST_SHARE, TRAIN_SHARE, Split
from simic.curation.snapshot import describe_files, publish, snapshot_digest, write_settings
from simic.curation.statements import (
    Statement,
    Watch,
    create_tables,
    load_statements,
    sql_digest,
    unwatched,
    write_outputs,
)
from simic.lake.duck import PLACES, connect, create_table
from simic.lake.held import drop_parts, hold_parts
from simic.lake.lake import Lake, open_lake
from simic.lake.ledger import Ledger
from simic.lake.parts import ledger_digest
from simic.lake.policies import POLICIES_LEDGER
from simic.lake.relations import create_parts_view
from simic.runtime.clock import Clock
from simic.runtime.locks import exclusive
from simic.runtime.settings import Home
from simic.trust.canonical import digest_of

__all__ = ["LAWS", "curate"]

LAWS: dict[str, object] = {
    "points_tolerance": 1e-9,  # what rounding may leave of an identity between points
    "chain_tolerance": 1e-6,  # likewise between accuracies, which travel as float32
    "parameters_most": float(2**53),  # as many as a report may name
    "hacking_ratio": 5.0,
    "ransom_contribution": 0.1,
    "ransom_loss": 0.2,
    "least_health": 0.7,  # G2's bound
    "least_log_prob": -10.0,  # likelier than 1 in 20,000; importance weights of rarer decisions say nothing
    "statistics_episodes": 5_000,
}
"""Constants that are no settings: accuracies are shares, logarithms natural."""
_TMP = "curate"
"""Folder below the home's tmp that only the holder of the lock uses."""


def curate(
    home: Home,
    config: CurateConfig,
    horizon: int,
    *,
    provenance: Provenance,
    clock: Clock,
    watch: Watch = unwatched,
) -> SnapshotManifest:
    """Seals a snapshot of all committed parts and returns its manifest.

    The same rows under the same settings give the same digest, however they are spread over parts; if that snapshot
    exists already its first manifest is returned. Reports older than ``config.ttl_days`` at ``clock()`` are left out.
    ``watch`` is told each SQL file that was done. Raises ContractViolation if nothing has landed or a check finds
    an offender, IntegrityError for a damaged part.
    """
    started_at = clock()
    with exclusive(home.locks / "curate", "curate"):
        lake = open_lake(home)
        if not lake.parts:
            raise ContractViolation("nothing has landed yet: run `simic collect` and `simic ingest` first")
        workshop = home.tmp / _TMP
        shutil.rmtree(workshop, ignore_errors=True)
        built = workshop / "snapshot"
        try:
            built.mkdir(parents=True)
            statements = load_statements(config.reward.family)
            job = _Job(statements, config, _parameters(config, horizon, started_at), watch)
            counts = _build(lake, job, built)
            write_settings(built, config, horizon, LAWS)
            (files, sources), rules = describe_files(built), sql_digest(statements)
            digest = snapshot_digest(files, rules)
            manifest = SnapshotManifest(
                **provenance._asdict(),
                started_at=started_at,
                finished_at=clock(),
                digest=digest,
                path=str(home.snapshots / digest[:16]),
                files=files,
                sources=sources,
                sql_digest=rules,
                ledger_digest=ledger_digest(lake.parts),
                ledger_parts=[part.part for part in lake.parts],
                reward_family=config.reward.family,
                reward_digest=digest_of(config.reward),
                gamma=config.gamma,
                **counts._asdict(),
            )
            sealed = publish(built, manifest)
        except OSError as error:
            raise TransientError(f"cannot write the snapshot: {error.strerror or error}; check space") from error
        finally:
            shutil.rmtree(workshop, ignore_errors=True)
        lake.were_read()
        return sealed


class _Counts(NamedTuple):
    """As in the manifest."""

    rows_in: int
    rows_out: int
    rejected: dict[str, int]
    episodes: dict[str, int]


def _parameters(config: CurateConfig, horizon: int, now: datetime) -> dict[str, object]:
    """What ``$name`` stands for in the SQL."""
    return {
        **config.reward.model_dump(exclude={"family"}),
        **LAWS,
        "gamma": config.gamma,
        "horizon": horizon,
        "oldest": now - timedelta(days=config.ttl_days),
        "max_versions_behind": config.max_versions_behind,
        "max_bytes": None if config.max_mb is None else config.max_mb * 2**20,
        "train_share": TRAIN_SHARE,
        "test_share": TEST_SHARE,
        "places": PLACES,
    }


class _Job(NamedTuple):
    """What to run, and how."""

    statements: list[Statement]
    config: CurateConfig
    parameters: Mapping[str, object]
    watch: Watch


def _build(lake: Lake, job: _Job, built: Path) -> _Counts:
    """Runs the statements over the parts and writes the snapshot's Parquet files into ``built``."""
    config = job.config
    held = hold_parts(lake, built, lake.home.snapshots.glob("*"))
    try:
        with connect(
            tmp=built.parent / "duckdb", memory_limit_mb=config.memory_limit_mb, threads=config.threads
        ) as connection:
            create_parts_view(connection, "reports", held, has_places=True)
            create_table(connection, "promotions", _promotions(lake.home))
            create_tables(connection, job.statements, job.parameters, job.watch)
            counts = _count(connection)
            write_outputs(connection, job.statements, built, job.watch)
            used = connection.execute("SELECT DISTINCT part FROM places_written").fetchall()
            drop_parts(built, (lake.parts[index].part for (index,) in used))
    except duckdb.OutOfMemoryException as error:
        raise ConfigError(f"curate.memory_limit_mb = {config.memory_limit_mb} is too little: {error}") from error
    except duckdb.IOException as error:
        raise TransientError(f"curation could not read or write: {error}") from error
    expected = sum(part.rows for part in lake.parts)
    if counts.rows_in != expected:
        raise IntegrityError(f"the ledger lists {expected} rows, the parts hold {counts.rows_in}")
    return counts


def _promotions(home: Home) -> pa.Table:
    """When each policy became champion; empty before the first."""
    lines = [PolicyVersion.model_validate(record) for record in Ledger(home.ledger / POLICIES_LEDGER).read()]
    return pa.table(
        {"policy_version": [line.digest for line in lines], "promoted_at": [line.finished_at for line in lines]},
        pa.schema([("policy_version", pa.string()), ("promoted_at", pa.timestamp("us", tz="UTC"))]),
    )


def _count(connection: duckdb.DuckDBPyConnection) -> _Counts:
    def pairs(sql: str) -> dict[str, int]:
        return dict(connection.execute(sql).fetchall())

    rows = connection.execute("SELECT (SELECT count(*) FROM reports), (SELECT count(*) FROM reward_terms)").fetchall()
    found = pairs("SELECT split, count(*) FROM episode_rows GROUP BY split")
    return _Counts(
        rows_in=rows[0][0],
        rows_out=rows[0][1],
        rejected=pairs("SELECT reason, count(*) FROM rejected_rows GROUP BY reason ORDER BY reason"),
        episodes={split.value: found.get(split.value, 0) for split in Split},
    )
