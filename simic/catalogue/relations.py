"""The relations that the public views read: schema ``internal`` of the catalogue, not part of the documentation.

Parquet files and JSON files are read when a query needs them. Ledgers and manifests are small and become tables.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import duckdb
import pyarrow as pa  # type: ignore[import-untyped]
from pydantic import BaseModel

from simic.bus.codec import decode, unwrap
from simic.contracts.envelope import EventEnvelope
from simic.contracts.errors import ContractError
from simic.contracts.names import MODELS
from simic.contracts.policy_update import PolicyUpdate
from simic.contracts.results.gate import GateDecision, ValidationReport
from simic.contracts.results.judgements import JudgementEntry
from simic.contracts.results.receipts import PolicyVersion, SnapshotManifest, TrainingReport
from simic.contracts.results.snapshots import Pin
from simic.contracts.results.trials import TrialReport
from simic.contracts.splits import TEST_SHARE, TRAIN_SHARE
from simic.contracts.telemetry import SloViolation, TelemetryPacket
from simic.lake.duck import create_parquet_view, create_table, exactly
from simic.lake.duck_views import create_parts_view
from simic.lake.lake import Lake
from simic.lake.quarantine import QUARANTINE_SCHEMA
from simic.lake.schema import arrow_schema, arrow_type
from simic.lake.verified_files import VerifiedFile, verify_cached
from simic.ledgers.judgements import judgements
from simic.ledgers.pins import pinned
from simic.ledgers.policies import candidate_versions, champion_versions, gate_decisions, parse_record, trainings
from simic.runtime.home import Home
from simic.runtime.telemetry_records import TelemetryRecords
from simic.snapshots.schema import SNAPSHOT_TABLES, schema_of
from simic.trust.keys import Keyring

__all__ = ["PARTS", "SCHEMA", "create_relations", "readable_folders"]

SCHEMA = "internal"
"""Schema of the relations here; the views are in ``main``, so that SHOW TABLES lists only these."""
PARTS = "lake_parts"
"""Relation of the live parts: in ``SCHEMA`` for a lake on disk, attached to each connection otherwise."""
_VERIFIED_SNAPSHOTS = "whole-snapshots.json"
_TRIAL_STAGES = tuple(str(kind.model_fields["stage"].default) for kind in (ValidationReport, TrialReport))
_CURVE_COLUMNS = pa.schema([("step", pa.int64()), ("metrics", pa.map_(pa.string(), pa.float64()))])
_TRIED = ("set", "seed", "code_version", "finished_at", "host_keys", "families", "controllers")
"""Fields of a TrialReport that the views show."""
_POLICY = "policy_digest"
"""Field of a TrialReport that names the candidate of a run; the view has that of a judgement from its report."""
_JUDGED = ("policy_digest", "champion_digest", "snapshot_digest", "trials")
"""Fields of a ValidationReport that the views show."""
_EVENT = {"event_id", "correlation_id"}
"""Fields of an update's envelope that the view shows."""
_JSON_BYTES = 2**20
"""Room for one JSON object where the files are smaller: DuckDB reserves twice as much for each thread."""


def readable_folders(home: Home) -> list[Path]:
    """Return the folders whose files the views read while a query runs."""
    receipts = [home.receipts / stage for stage in _TRIAL_STAGES]
    return [home.experience, home.snapshots, home.quarantine, home.curves, home.telemetry, *receipts]


def create_relations(connection: duckdb.DuckDBPyConnection, lake: Lake) -> None:
    """Create schema ``internal`` and its relations; a missing file means an empty relation.

    Raises:
        IntegrityError: A ledger, a manifest or a part is damaged.
    """
    home = lake.home
    connection.execute(f"CREATE SCHEMA {SCHEMA}")
    connection.execute(f"USE {SCHEMA}")
    connection.execute(
        "CREATE MACRO split_of(set_name, host_key) AS CASE "
        f"WHEN ('0x' || sha256(set_name || ':' || host_key)[1:8])::UBIGINT % 100 < {TRAIN_SHARE} THEN 'train' "
        f"WHEN ('0x' || sha256(set_name || ':' || host_key)[1:8])::UBIGINT % 100 >= {100 - TEST_SHARE} THEN 'test' "
        "ELSE 'validation' END"
    )
    lake.check()
    create_parts_view(connection, PARTS, lake)
    connection.execute(f"CREATE VIEW landed AS FROM {PARTS}")
    create_parquet_view(connection, "refused", sorted(home.quarantine.glob("*.parquet")), QUARANTINE_SCHEMA)
    trained = trainings(home)
    for name, read in (("policy_versions", champion_versions), ("candidate_versions", candidate_versions)):
        versions = [version for model in MODELS for version in read(home, model)]
        create_table(connection, name, _table(versions, PolicyVersion))
    create_table(connection, "gate_decisions", _table(gate_decisions(home), GateDecision))
    create_table(connection, "begun_judgements", _table(judgements(home, Keyring(home.keys)), JudgementEntry))
    create_table(connection, "training_reports", _table(trained, TrainingReport))
    create_table(connection, "pins", _table(list(pinned(home).values()), Pin))
    _create_snapshots(connection, home)
    _create_curves(connection, trained)
    _create_trials(connection, home)
    _create_updates(connection, home)
    _create_telemetry(connection, TelemetryRecords(home))
    connection.execute("USE main")


def _create_snapshots(connection: duckdb.DuckDBPyConnection, home: Home) -> None:
    """``manifests``; views over the Parquet of all snapshots; ``snapshot_files`` names the snapshot of each file."""
    manifests = {
        path.parent: parse_record(path, path.read_bytes(), SnapshotManifest).model_copy(
            update={"path": str(path.parent)}  # the present path, in case the home was moved
        )
        for path in sorted(home.snapshots.glob("*/manifest.json"))
    }
    verify_cached(
        [
            VerifiedFile(folder / file.name, file.sha256, file.size_bytes)
            for folder, manifest in manifests.items()
            for file in manifest.files
            if file.name in ("steps.parquet", "rejected.parquet")
        ],
        home.data / _VERIFIED_SNAPSHOTS,
        "move the snapshot away and run `simic curate` again",
    )
    create_table(connection, "manifests", _table(list(manifests.values()), SnapshotManifest))
    owners: dict[Path, str] = {}
    for name in ("steps", "rejected"):
        files = [folder / f"{name}.parquet" for folder in manifests]
        schema = schema_of(SNAPSHOT_TABLES[name])
        create_parquet_view(connection, f"snapshot_{name}", files, schema, has_file_names=True)
        owners |= {path: manifests[path.parent].digest for path in files}
    _create_owners(connection, "snapshot_files", "snapshot", owners)


def _create_curves(connection: duckdb.DuckDBPyConnection, trained: Sequence[TrainingReport]) -> None:
    """``curve_lines``, one row per logged update, and ``curve_files``, the policy of each file.

    A line that a killed process left incomplete is skipped.
    """
    owners = {path: report.digest for report in trained if (path := Path(report.curves_path)).is_file()}
    _create_json_view(connection, "curve_lines", list(owners), _CURVE_COLUMNS, "newline_delimited")
    _create_owners(connection, "curve_files", "policy", owners)


def _create_trials(connection: duckdb.DuckDBPyConnection, home: Home) -> None:
    """``trial_reports``: the trials of every validation, further set and `simic trials`; seals are not checked here."""
    owners: dict[Path, str] = {}
    for kind, names in ((ValidationReport, _JUDGED), (TrialReport, (*_TRIED, _POLICY))):
        stage = str(kind.model_fields["stage"].default)
        files = sorted((home.receipts / stage).glob("*.json"))
        owners |= {path: f"{stage}/{path.name}" for path in files}
        columns = pa.schema([(name, arrow_type(kind.model_fields[name].annotation)) for name in names])
        _create_json_view(connection, f"{stage}_receipts", files, columns, "unstructured")
    _create_owners(connection, "trial_files", "receipt", owners)
    tried = ", ".join(f'"{name}"' for name in _TRIED)
    judged = ", ".join(f'trials."{name}" AS "{name}"' for name in _TRIED)
    connection.execute(
        "CREATE VIEW trial_reports AS "  # noqa: S608 - names of the contracts
        "SELECT receipt, 'validate' AS stage, policy_digest AS policy, champion_digest AS champion, "
        f"snapshot_digest AS snapshot, {judged} FROM validate_receipts INNER JOIN trial_files USING (filename) "
        f"UNION ALL BY NAME SELECT receipt, 'trials' AS stage, {_POLICY} AS policy, {tried} "
        "FROM trials_receipts INNER JOIN trial_files USING (filename)"
    )


def _create_updates(connection: duckdb.DuckDBPyConnection, home: Home) -> None:
    """``delivered_updates``: the updates that the outbox delivered. The signatures are not checked here.

    A file that is no update was edited; `simic doctor` names it, and it says nothing here.
    """
    rows = []
    for path in sorted((home.outbox / "done").glob("*.json")):
        try:
            event = decode(EventEnvelope, path.read_bytes())
            rows.append({**unwrap(event, PolicyUpdate).model_dump(), **event.model_dump(include=_EVENT)})
        except ContractError:
            continue
    names = ("policy_name", "version", "digest", "reference", "targets", "issued_at")
    fields = [(name, arrow_type(PolicyUpdate.model_fields[name].annotation)) for name in names]
    schema = pa.schema([*((name, pa.string()) for name in sorted(_EVENT)), *fields, ("share", pa.float64())])
    shares = [{**row, "share": row["rollout"]["share"] if row.get("rollout") else None} for row in rows]
    create_table(connection, "delivered_updates", pa.Table.from_pylist(shares, schema=schema))


def _create_telemetry(connection: duckdb.DuckDBPyConnection, records: TelemetryRecords) -> None:
    """``packet_lines`` and ``violation_lines``: records as they were written; an incomplete line is skipped."""
    for name, path, model in (
        ("packet_lines", records.packets_path, TelemetryPacket),
        ("violation_lines", records.violations_path, SloViolation),
    ):
        paths = [path] if path.is_file() else []
        _create_json_view(connection, name, paths, arrow_schema(model), "newline_delimited")


def _create_json_view(
    connection: duckdb.DuckDBPyConnection, name: str, paths: Sequence[Path], schema: pa.Schema, form: str
) -> None:
    """A relation over JSON files with the columns of ``schema`` and ``filename``; without files, an empty table."""
    empty = f"{name}_without_rows"
    create_table(connection, empty, schema.empty_table())
    types = {row[0]: row[1] for row in connection.execute(f'DESCRIBE "{empty}"').fetchall()}
    connection.execute(f'DROP TABLE "{empty}"')
    if not paths:
        create_table(connection, name, pa.schema([*schema, ("filename", pa.string())]).empty_table())
        return
    files = ", ".join("'" + exactly(path).replace("'", "''") + "'" for path in paths)
    columns = ", ".join(f"'{column}': '{kind}'" for column, kind in types.items())
    is_lines = form == "newline_delimited"
    room = _JSON_BYTES if is_lines else max(_JSON_BYTES, *(path.stat().st_size + 1 for path in paths))
    connection.execute(
        f"CREATE VIEW \"{name}\" AS SELECT * FROM read_json([{files}], format = '{form}', "  # noqa: S608
        f"columns = {{{columns}}}, filename = true, ignore_errors = {is_lines}, maximum_object_size = {room})"
    )


def _create_owners(connection: duckdb.DuckDBPyConnection, name: str, column: str, owners: Mapping[Path, str]) -> None:
    """A table that names the owner of each file."""
    rows = [{"filename": str(path), column: owner} for path, owner in owners.items()]
    schema = pa.schema([("filename", pa.string()), (column, pa.string())])
    create_table(connection, name, pa.Table.from_pylist(rows, schema=schema))


def _table(rows: Sequence[BaseModel], model: type[BaseModel]) -> pa.Table:
    return pa.Table.from_pylist([row.model_dump(mode="python") for row in rows], schema=arrow_schema(model))
