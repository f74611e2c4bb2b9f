"""Landed reports to a snapshot: the numbered SQL files, in order, on a bounded DuckDB."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import NamedTuple

import duckdb

from simic.contracts.config import CurateConfig
from simic.contracts.errors import ConfigError, ContractViolation, IntegrityError, TransientError
from simic.contracts.receipts import Provenance, SnapshotManifest
from simic.contracts.splits import TEST_SHARE, TRAIN_SHARE, Split
from simic.curation.snapshot import describe_files, publish, snapshot_digest, write_settings
from simic.curation.statements import Statement, create_tables, load_statements, sql_digest, write_outputs
from simic.lake.duck import connect, create_parquet_view
from simic.lake.ledger import Ledger
from simic.lake.parts import PARTS_LEDGER, Part, committed_parts, ledger_digest, verify_part
from simic.lake.schema import LANDED_SCHEMA
from simic.runtime.clock import Clock
from simic.runtime.locks import exclusive
from simic.runtime.settings import Home

__all__ = ["curate"]

_TMP = "curate"
"""Folder below the home's tmp that only the holder of the lock uses."""


def curate(home: Home, config: CurateConfig, horizon: int, *, provenance: Provenance, clock: Clock) -> SnapshotManifest:
    """Seals a snapshot of all committed parts and returns its manifest.

    The same rows under the same settings give the same digest, however they are spread over parts; if that snapshot
    exists already its first manifest is returned. Reports older than ``config.ttl_days`` at ``clock()`` are left out.
    Raises ContractViolation if nothing has landed or a check finds an offender, IntegrityError for a damaged part.
    """
    started_at = clock()
    with exclusive(home.locks / "curate", "curate"):
        parts = committed_parts(Ledger(home.ledger / PARTS_LEDGER))
        if not parts:
            raise ContractViolation("nothing has landed yet: run `simic collect` and `simic ingest` first")
        workshop = home.tmp / _TMP
        shutil.rmtree(workshop, ignore_errors=True)
        built = workshop / "snapshot"
        try:
            built.mkdir(parents=True)
            statements = load_statements()
            counts = _build(home, parts, statements, built, config, _parameters(config, horizon, started_at))
            write_settings(built, config, horizon)
            files, rules = describe_files(built), sql_digest(statements)
            digest = snapshot_digest(files, rules)
            manifest = SnapshotManifest(
                **provenance._asdict(),
                started_at=started_at,
                finished_at=clock(),
                digest=digest,
                path=str(home.snapshots / digest[:16]),
                files=files,
                sql_digest=rules,
                ledger_digest=ledger_digest(parts),
                ledger_parts=[part.part for part in parts],
                reward_family=config.reward.family,
                gamma=config.gamma,
                **counts._asdict(),
            )
            return publish(built, manifest)
        except OSError as error:
            raise TransientError(f"cannot write the snapshot: {error.strerror or error}; check space") from error
        finally:
            shutil.rmtree(workshop, ignore_errors=True)


class _Counts(NamedTuple):
    """As in the manifest."""

    rows_in: int
    rows_out: int
    rejected: dict[str, int]
    episodes: dict[str, int]


def _parameters(config: CurateConfig, horizon: int, now: datetime) -> dict[str, object]:
    reward = config.reward
    return {
        "accuracy_scale": reward.accuracy_scale,
        "rent": reward.rent,
        "rent_parameters": reward.rent_parameters,
        "governor_penalty": reward.governor_penalty,
        "gamma": config.gamma,
        "horizon": horizon,
        "oldest": now - timedelta(days=config.ttl_days),
        "train_share": TRAIN_SHARE,
        "test_share": TEST_SHARE,
    }


def _build(
    home: Home,
    parts: Sequence[Part],
    statements: list[Statement],
    built: Path,
    config: CurateConfig,
    parameters: Mapping[str, object],
) -> _Counts:
    """Runs the statements over the parts and writes the snapshot's Parquet files into ``built``."""
    paths = [verify_part(home.experience, part) for part in parts]
    try:
        with connect(
            tmp=built.parent / "duckdb", memory_limit_mb=config.memory_limit_mb, threads=config.threads
        ) as connection:
            create_parquet_view(connection, "reports", paths, LANDED_SCHEMA)
            create_tables(connection, statements, parameters)
            counts = _count(connection)
            write_outputs(connection, statements, built)
    except duckdb.OutOfMemoryException as error:
        raise ConfigError(f"curate.memory_limit_mb = {config.memory_limit_mb} is too little: {error}") from error
    except duckdb.IOException as error:
        raise TransientError(f"curation could not read or write: {error}") from error
    expected = sum(part.rows for part in parts)
    if counts.rows_in != expected:
        raise IntegrityError(f"the ledger lists {expected} rows, the parts hold {counts.rows_in}")
    return counts


def _count(connection: duckdb.DuckDBPyConnection) -> _Counts:
    def pairs(sql: str) -> dict[str, int]:
        return dict(connection.execute(sql).fetchall())

    rows = connection.execute("SELECT (SELECT count(*) FROM landed), (SELECT count(*) FROM reward_terms)").fetchall()
    found = pairs("SELECT split, count(*) FROM episode_rows GROUP BY split")
    return _Counts(
        rows_in=rows[0][0],
        rows_out=rows[0][1],
        rejected=pairs("SELECT reason, count(*) FROM rejected_rows GROUP BY reason ORDER BY reason"),
        episodes={split.value: found.get(split.value, 0) for split in Split},
    )
