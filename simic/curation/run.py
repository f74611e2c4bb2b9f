"""Curation: runs the numbered SQL files over all landed reports and publishes the result as a snapshot."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Mapping
from datetime import datetime, timedelta
from pathlib import Path
from typing import NamedTuple

import duckdb
import pyarrow as pa  # type: ignore[import-untyped]

from simic.contracts.errors import ContractError, IntegrityError, TransientError
from simic.contracts.results.receipts import Provenance, SnapshotManifest
from simic.contracts.settings.run import CurateConfig
from simic.contracts.splits import TEST_SHARE, TRAIN_SHARE, Split
from simic.curation.statements import (
    OnStatement,
    Statement,
    create_tables,
    ignore,
    load_statements,
    sql_digest,
    write_outputs,
)
from simic.lake.duck import ROW_ID_STRIDE, connect, create_table
from simic.lake.duck_views import create_parts_view
from simic.lake.lake import Lake, open_lake
from simic.lake.parts import ledger_digest
from simic.ledgers.policies import champion_versions
from simic.runtime.clock import Clock
from simic.runtime.home import Home
from simic.runtime.locks import exclusive
from simic.snapshots.index import folders
from simic.snapshots.manifest import describe_files, publish, snapshot_digest, write_settings
from simic.snapshots.parts import link_parts, unlink_unused
from simic.trust.canonical import digest_of

__all__ = ["CONSTANTS", "curate", "why_empty"]

_LOG = logging.getLogger(__name__)

CONSTANTS: dict[str, object] = {
    "points_tolerance": 1e-9,  # tolerance of rounding in identities between points
    "chain_tolerance": 1e-6,  # the same for accuracies, which travel as float32
    "parameters_most": float(2**53),  # the largest number of them that a report may name
    "least_health": 0.7,  # share of gradients below which a seed lowers the quality of its episode
    "least_log_prob": -10.0,  # probability 1 in 20,000; importance weights of rarer decisions carry no information
}
"""Constants of the SQL that are not settings; accuracies are shares, logarithms natural."""
_CAUSES = {
    "conflict": "another content under an id that landed before",
    "duplicate": "landed before",
    "same_content": "landed before under another id",
    "judging": "of trials and comparisons, which judge and never train",
    "expired": "older than curate.ttl_days",
    "stale": "of a policy further behind than curate.max_versions_behind",
    "evicted": "beyond curate.max_mb",
    "other_horizon": "of a horizon that neither world.horizon nor curate.also_horizons names, or of two",
    "mixed_identity": "of episodes with two hosts, two policies or two budgets of seeds",
    "unnamed_policy": "of a policy that its reports do not name",
    "overlap": "of episodes with two reports of one step",
    "gap": 'of episodes without all their steps; `simic sql "SELECT * FROM quarantine"` shows refused reports',
    "unfinished": "of episodes without an end",
    "ends_twice": "of episodes with more than one end",
    "broken_chain": "of episodes whose steps do not join",
}
"""Meaning of each reason for which curation leaves a row out."""
_TMP = "curate"
"""Folder below the home's tmp, for what DuckDB spills, that only the holder of the lock uses."""


def curate(
    home: Home,
    config: CurateConfig,
    horizon: int,
    *,
    provenance: Provenance,
    clock: Clock,
    on_statement: OnStatement = ignore,
) -> SnapshotManifest:
    """Make a snapshot of all committed parts and return its manifest.

    The same rows under the same settings give the same digest, whatever parts they lie in, as long as no policy is
    promoted: each episode says how many versions its policy is behind. If that snapshot exists, its manifest is
    returned. Reports older than ``config.ttl_days`` at ``clock()`` are left out. If no row is left,
    the snapshot is empty and a warning names the reasons. Episodes of ``horizon`` epochs are used, and those of
    ``config.also_horizons``. ``on_statement`` is called with the name of each SQL file
    after it ran.

    Raises:
        ContractError: if the lake holds no reports, or an invariant is violated.
        IntegrityError: if a part is damaged.
        TransientError: if the disk is full, or another curation is running.
    """
    started_at = clock()
    with exclusive(home.locks / "curate", "curate"):
        lake = open_lake(home)
        if not lake.parts:
            raise ContractError(
                "the lake holds no reports: expected at least one, found 0; run `simic ingest` if reports wait on the "
                "bus, else deliver some or run `simic collect` first. What was refused is in the view quarantine: "
                'simic sql "SELECT reason, message FROM quarantine"'
            )
        tmp, built = home.tmp / _TMP, home.unfinished_snapshots / "snapshot"
        _remove(tmp, home.unfinished_snapshots)
        try:
            built.mkdir(parents=True)
            statements = load_statements(config.reward.family)
            job = _Job(statements, config, _parameters(config, horizon, started_at), on_statement)
            counts = _build(lake, job, built, tmp)
            write_settings(built, config, horizon, _constants(config))
            (files, sources), rules = describe_files(built), sql_digest(statements)
            digest = snapshot_digest(files, rules)
            manifest = SnapshotManifest(
                **provenance._asdict(),
                started_at=started_at,
                finished_at=clock(),
                digest=digest,
                path=str(home.snapshot_folder(digest)),
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
            _remove(tmp, home.unfinished_snapshots)
        lake.mark_verified()
        if (reasons := why_empty(sealed)) is not None:
            _LOG.warning("%s", reasons)
        return sealed


def _remove(*folders: Path) -> None:
    for folder in folders:
        shutil.rmtree(folder, ignore_errors=True)


class _Counts(NamedTuple):
    """Counts of the manifest."""

    rows_in: int
    rows_out: int
    rejected: dict[str, int]
    episodes: dict[str, int]


def _constants(config: CurateConfig) -> dict[str, object]:
    """Return the constants of the SQL and the thresholds of flags, which the settings of a snapshot list among them."""
    return {**CONSTANTS, **config.flags.model_dump()}


def _parameters(config: CurateConfig, horizon: int, now: datetime) -> dict[str, object]:
    """Return the value of each ``$name`` in the SQL."""
    horizons = {horizon, *config.also_horizons}
    return {
        **config.reward.model_dump(exclude={"family"}),
        **_constants(config),
        "gamma": config.gamma,
        "horizons": sorted(horizons),
        "shortest_horizon": min(horizons),
        "oldest": now - timedelta(days=config.ttl_days),
        "max_versions_behind": config.max_versions_behind,
        "max_bytes": None if config.max_mb is None else config.max_mb * 2**20,
        "train_share": TRAIN_SHARE,
        "test_share": TEST_SHARE,
        "row_id_stride": ROW_ID_STRIDE,
    }


class _Job(NamedTuple):
    """Statements to run, with their settings and parameters."""

    statements: list[Statement]
    config: CurateConfig
    parameters: Mapping[str, object]
    on_statement: OnStatement


def _build(lake: Lake, job: _Job, built: Path, tmp: Path) -> _Counts:
    """Run the statements over the parts and write the snapshot's Parquet files into ``built``; spill to ``tmp``."""
    config = job.config
    linked = link_parts(lake, built, folders(lake.home))
    try:
        with connect(
            tmp=tmp,
            memory_limit_mb=config.memory_limit_mb,
            threads=config.threads,
            what="curation",
            remedy="raise curate.memory_limit_mb",
        ) as connection:
            create_parts_view(connection, "reports", linked, with_row_ids=True)
            create_table(connection, "promotions", _promotions(lake.home))
            create_tables(connection, job.statements, job.parameters, job.on_statement)
            counts = _count(connection)
            write_outputs(connection, job.statements, built, job.on_statement)
            used = connection.execute("SELECT DISTINCT part FROM row_index_written").fetchall()
            unlink_unused(built, (lake.parts[index].part for (index,) in used))
    except duckdb.IOException as error:
        raise TransientError(f"curation could not read or write: {error}") from error
    expected = sum(part.rows for part in lake.parts)
    if counts.rows_in != expected:
        raise IntegrityError(
            f"the ledger lists {expected} rows, the parts hold {counts.rows_in}; run `simic doctor --deep`"
        )
    return counts


def _promotions(home: Home) -> pa.Table:
    """Return when each policy became champion; empty before the first promotion."""
    lines = champion_versions(home)
    return pa.table(
        {"policy_version": [line.digest for line in lines], "promoted_at": [line.finished_at for line in lines]},
        pa.schema([("policy_version", pa.string()), ("promoted_at", pa.timestamp("us", tz="UTC"))]),
    )


def _count(connection: duckdb.DuckDBPyConnection) -> _Counts:
    def pairs(sql: str) -> dict[str, int]:
        return dict(connection.execute(sql).fetchall())

    rows = connection.execute("SELECT (SELECT count(*) FROM reports), (SELECT count(*) FROM reward_terms)").fetchall()
    episodes = pairs("SELECT split, count(*) FROM episode_rows GROUP BY split")
    return _Counts(
        rows_in=rows[0][0],
        rows_out=rows[0][1],
        rejected=pairs("SELECT reason, count(*) FROM rejected_rows GROUP BY reason ORDER BY reason"),
        episodes={split.value: episodes.get(split.value, 0) for split in Split},
    )


def why_empty(manifest: SnapshotManifest) -> str | None:
    """Name the rows left out per reason, most frequent first, and the next step; None if rows were kept."""
    if manifest.rows_out:
        return None
    counts = sorted(manifest.rejected.items(), key=lambda item: (-item[1], item[0]))
    reasons = "; ".join(f"{rows} {reason} ({_CAUSES.get(reason, 'see docs/schema.md')})" for reason, rows in counts)
    remedy = (
        "no setting changes that: `simic collect` and `simic ingest` bring reports to train on"
        if set(manifest.rejected) == {"judging"}
        else "change the setting that a reason names, or ingest the missing reports"
    )
    return (
        f"curation kept 0 of {manifest.rows_in} rows: {reasons or 'no row has a reason'}. Training refuses snapshot "
        f"{manifest.digest[:16]}; {remedy}, then curate again"
    )
