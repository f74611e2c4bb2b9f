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
from support.reports import plain

from simic.contracts.field_report import FieldReport
from simic.contracts.receipts import FileDigest, SnapshotManifest
from simic.contracts.splits import split_of
from simic.numerics.rewards import basic_rewards

__all__ = ["rows_of", "write_snapshot"]

_MOMENT = datetime(2026, 1, 6, tzinfo=UTC)
_KEPT = (
    "run_id", "step", "controller", "policy_version", "state", "final_state", "available", "action",
    "log_prob_behaviour", "terminated", "truncated",
)  # fmt: skip


def write_snapshot(
    directory: Path,
    reports: Iterable[FieldReport],
    *,
    gamma: float = 0.99,
    split: str | None = None,
    change: Callable[[list[dict[str, Any]]], list[dict[str, Any]]] | None = None,
) -> SnapshotManifest:
    """``split`` overrides the split of every host; ``change`` may spoil the rows before they are written."""
    rows = rows_of(reports, gamma, split)
    if change is not None:
        rows = change(rows)
    directory.mkdir(parents=True)
    pq.write_table(pa.Table.from_pylist(rows), directory / "steps.parquet")
    content = (directory / "steps.parquet").read_bytes()
    sha256 = hashlib.sha256(content).hexdigest()
    manifest = SnapshotManifest(
        code_version="test",
        config_digest="0" * 64,
        seed=0,
        started_at=_MOMENT,
        finished_at=_MOMENT,
        digest=sha256,
        path=str(directory),
        files=[FileDigest(name="steps.parquet", sha256=sha256, size_bytes=len(content))],
        sql_digest="0" * 64,
        ledger_digest="0" * 64,
        ledger_parts=[],
        reward_family="basic",
        gamma=gamma,
        rows_in=len(rows),
        rows_out=len(rows),
        rejected={},
        episodes={"train": len({row["run_id"] for row in rows if row["split"] == "train"})},
    )
    (directory / "manifest.json").write_text(manifest.model_dump_json())
    return manifest


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
    return {
        **{name: raw[name] for name in _KEPT},
        "split": split or split_of(report.host.set, report.host.key).value,
        "set": report.host.set,
        "family": report.host.family,
        "host_key": report.host.key,
        "reward": _reward(raw["metrics"], raw["state"]["horizon"], report.governor is not None),
    }


def _reward(metrics: Mapping[str, Any], horizon: int, governor: bool) -> float:
    rewards = basic_rewards(
        accuracy_before=metrics["validation_accuracy_before"],
        accuracy_after=metrics["validation_accuracy_after"],
        rent_parameters=metrics["rent_parameters"],
        governor=governor,
        accuracy_scale=100.0,
        rent=3.0,
        rent_parameters_scale=1640.0,
        horizon=horizon,
        governor_penalty=10.0,
    )
    return float(rewards)
