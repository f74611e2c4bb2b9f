"""Snapshots made up by hand: the Parquet that curation writes, straight from field reports."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from itertools import groupby
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from simic.contracts.field_report import FieldReport
from simic.contracts.file_digest import FileDigest
from simic.contracts.results.receipts import SnapshotManifest
from simic.contracts.rewards import RewardConfig
from simic.contracts.settings.run import CurateConfig
from simic.contracts.splits import Split, split_of
from simic.numerics.rewards import basic_rewards
from simic.snapshots.manifest import (
    SETTINGS_NAME,
    Verify,
    describe_files,
    read_manifest,
    snapshot_digest,
    write_settings,
)
from simic.snapshots.parts import read_rows
from simic.snapshots.schema import DIFFICULTY_COLUMNS, schema_of
from simic.trust.canonical import digest_of
from support.builders.reports import plain

__all__ = ["PART", "reseal", "rows_of", "told_rows", "write_snapshot"]

_MOMENT = datetime(2026, 1, 6, tzinfo=UTC)
PART = "part-0123456789abcdef.parquet"
_TOLD = ("content_digest", "state", "final_state", "available", "action", "log_prob_behaviour")
_KEPT = (
    "report_id", "run_id", "step", "controller", "policy_version", "state", "final_state", "available", "action",
    "log_prob_behaviour", "terminated", "truncated", "branch_of", "branch_step",
)  # fmt: skip


def write_snapshot(
    directory: Path,
    reports: Iterable[FieldReport],
    *,
    gamma: float = 0.99,
    split: str | None = None,
    change: Callable[[list[dict[str, Any]]], list[dict[str, Any]]] | None = None,
    difficulty: Mapping[int, float] | None = None,
    reward: RewardConfig | None = None,
) -> SnapshotManifest:
    """``split`` overrides the split of every host; ``change`` may spoil the rows before they are written.

    ``difficulty`` is that of hosts by key, and ``reward`` the prices in the settings; each has a file that is not there
    without it.
    """
    rows = rows_of(reports, gamma, split)
    if change is not None:
        rows = change(rows)
    directory.mkdir(parents=True)
    table = pa.Table.from_pylist(rows)
    told = [name for name in _TOLD if name in table.column_names]
    pq.write_table(table.drop_columns(told), directory / "steps.parquet")
    pq.write_table(table.select(["report_id", *told]), directory / PART)
    pq.write_table(pa.table({"part": [0] * len(rows), "row": range(len(rows))}), directory / "row_index.parquet")
    files = [] if difficulty is None else [_write_difficulty(directory, rows, difficulty)]
    if reward is not None:
        write_settings(directory, CurateConfig(gamma=gamma, reward=reward), 20, {})
        files.append(_described(directory / SETTINGS_NAME))
    steps, part, row_index = (_described(directory / name) for name in ("steps.parquet", PART, "row_index.parquet"))
    manifest = SnapshotManifest(
        code_version="test",
        config_digest="0" * 64,
        seed=0,
        started_at=_MOMENT,
        finished_at=_MOMENT,
        digest=snapshot_digest([*files, steps], "0" * 64),
        path=str(directory),
        files=[*files, steps],
        sources=[part, row_index],
        sql_digest="0" * 64,
        ledger_digest="0" * 64,
        ledger_parts=[f"day=2026-01-06/{PART}"],
        reward_family="basic",
        reward_digest=None if reward is None else digest_of(reward.model_dump(mode="json")),
        gamma=gamma,
        rows_in=len(rows),
        rows_out=len(rows),
        rejected={},
        episodes={"train": len({row["run_id"] for row in rows if row["split"] == "train"})},
    )
    (directory / "manifest.json").write_text(manifest.model_dump_json())
    return manifest


def _write_difficulty(directory: Path, rows: list[dict[str, Any]], difficulty: Mapping[int, float]) -> FileDigest:
    """What curation writes about the training hosts of ``rows``."""
    hosts = sorted({(row["set"], row["family"], row["host_key"]) for row in rows if row["host_key"] in difficulty})
    ranked = [
        {
            "set": name,
            "family": family,
            "host_key": key,
            "episodes": 1,
            "mean_return": 0.0,
            "difficulty": difficulty[key],
        }
        for name, family, key in hosts
    ]
    path = directory / "difficulty.parquet"
    pq.write_table(pa.Table.from_pylist(ranked, schema=schema_of(DIFFICULTY_COLUMNS)), path)
    return _described(path)


def reseal(folder: Path) -> SnapshotManifest:
    """Renew the digests in a manifest from the files as they are now, as a forger would."""
    manifest = read_manifest(folder, Verify.NONE)
    files, sources = describe_files(folder)
    forged = manifest.model_copy(
        update={"files": files, "sources": sources, "digest": snapshot_digest(files, manifest.sql_digest)}
    )
    (folder / "manifest.json").write_text(forged.model_dump_json())
    return forged


def told_rows(manifest: SnapshotManifest, *told: str) -> list[dict[str, Any]]:
    """The rows of a snapshot by (run_id, step), with columns of the reports behind them."""
    kept = pq.read_schema(Path(manifest.path) / "steps.parquet").names
    rows = [
        row
        for split in Split
        for batch in read_rows(manifest, split.value, kept, told, batch_rows=1000)
        for row in batch.to_pylist()
    ]
    return sorted(rows, key=lambda row: (row["run_id"], row["step"]))


def _described(path: Path) -> FileDigest:
    content = path.read_bytes()
    return FileDigest(name=path.name, sha256=hashlib.sha256(content).hexdigest(), size_bytes=len(content))


def rows_of(reports: Iterable[FieldReport], gamma: float, split: str | None = None) -> list[dict[str, Any]]:
    """One row per report, sorted by (run_id, step), with reward and discounted return to go."""
    ordered = sorted(reports, key=lambda report: (report.run_id, report.step))
    rows: list[dict[str, Any]] = []
    for _, group in groupby(ordered, key=lambda report: report.run_id):
        episode = [_row(report, split) for report in group]
        to_go = 0.0
        for row in reversed(episode):
            to_go = row["reward"] + gamma * to_go
            row["return_to_go"] = to_go
        rows.extend(episode)
    return rows


def _row(report: FieldReport, split: str | None) -> dict[str, Any]:
    raw = plain(report)
    digest = hashlib.sha256(report.report_id.encode()).hexdigest()
    return {
        **{name: raw[name] for name in _KEPT},
        "content_digest": digest,
        "content_id": digest[:32],
        "split": split or split_of(report.host.set, report.host.key).value,
        "set": report.host.set,
        "family": report.host.family,
        "host_key": report.host.key,
        "reward": _reward(raw["metrics"], raw["state"]["horizon"], report.governor is not None),
    }


def _reward(metrics: Mapping[str, Any], horizon: int, governor: bool) -> float:
    rewards = basic_rewards(
        RewardConfig(),
        horizon=horizon,
        accuracy_before=metrics["validation_accuracy_before"],
        accuracy_after=metrics["validation_accuracy_after"],
        rent_parameters=metrics["rent_parameters"],
        governor=governor,
    )
    return float(rewards)
