"""The columns of a snapshot's Parquet files: what curation writes, replay reads and the documentation says."""

from __future__ import annotations

import pyarrow as pa  # type: ignore[import-untyped]

from simic.lake.schema import REPORT_SCHEMA

__all__ = ["EPISODE_COLUMNS", "REJECTED_COLUMNS", "SNAPSHOT_TABLES", "STEP_COLUMNS", "schema_of"]

Columns = dict[str, tuple[pa.DataType, str]]

_TEXT, _WHOLE, _REAL, _TRUTH = pa.string(), pa.int64(), pa.float64(), pa.bool_()


def _told(name: str) -> pa.DataType:
    return REPORT_SCHEMA.field(name).type


_IDENTITY: Columns = {
    "set": (_TEXT, "The world the host belongs to."),
    "family": (_TEXT, "The host's family."),
    "host_key": (_WHOLE, "Fixes the host's data, weights and noise."),
    "split": (_TEXT, "train, validation or test, by the host's key."),
    "controller": (_TEXT, "Who decided."),
    "policy_version": (_TEXT, "Digest of the acting policy; null for a controller without weights."),
}
_TERMS: Columns = {
    "reward_progress": (_REAL, "Points for validation accuracy gained."),
    "reward_rent": (_REAL, "Points paid for parameters; zero or negative."),
    "reward_penalty": (_REAL, "Points paid for a panic; zero or negative."),
}

STEP_COLUMNS: Columns = {
    "run_id": (_TEXT, "The episode; rows are ordered by it, then by step."),
    "step": (_WHOLE, "From 0, without gaps."),
    "report_id": (_TEXT, "The report behind the row."),
    **_IDENTITY,
    "state": (_told("state"), "What the controller saw."),
    "final_state": (_told("final_state"), "What it would have seen next; on an episode's last row only."),
    "available": (_told("available"), "What was legal."),
    "action": (_told("action"), "What was chosen."),
    "relevant": (_told("relevant"), "Which factors of the action mattered."),
    "log_prob_behaviour": (_told("log_prob_behaviour"), "How likely the choice was, as natural logarithms."),
    "outcome": (_TEXT, "How the window ended."),
    "accuracy_before": (_REAL, "Validation accuracy before the window."),
    "accuracy_after": (_REAL, "Validation accuracy after it; on the last step of the network to be kept."),
    "test_accuracy": (_REAL, "On the last step only; reported, never learned from."),
    "rent_parameters": (_WHOLE, "Parameters of seeds alive or fossilised during the window."),
    "committed_parameters": (_WHOLE, "Parameters of fossilised seeds after the window."),
    "has_governor": (_TRUTH, "The governor ended the episode here."),
    "terminated": (_TRUTH, "The episode ended here by itself."),
    "truncated": (_TRUTH, "The episode was cut off here."),
    **_TERMS,
    "reward": (_REAL, "The sum of the three terms."),
    "return_to_go": (_REAL, "Discounted rewards from here to the last step told; nothing is added for a cut."),
}
"""``steps.parquet``: one step of a usable episode."""

EPISODE_COLUMNS: Columns = {
    "run_id": (_TEXT, "The episode; rows are ordered by it."),
    **_IDENTITY,
    "steps": (_WHOLE, "Rows in `steps.parquet`."),
    "terminated": (_TRUTH, "It ended by itself."),
    "truncated": (_TRUTH, "It was cut off."),
    "has_governor": (_TRUTH, "The governor ended it."),
    "germinated": (_WHOLE, "Seeds placed."),
    "fossilized": (_WHOLE, "Seeds kept."),
    "pruned": (_WHOLE, "Seeds removed on purpose."),
    "accuracy_before": (_REAL, "Validation accuracy of the untouched host."),
    "accuracy_after": (_REAL, "Validation accuracy of the network kept."),
    "test_accuracy": (_REAL, "Test accuracy of the network kept; never learned from."),
    "committed_parameters": (_WHOLE, "Parameters of its fossilised seeds."),
    **_TERMS,
    "episode_return": (_REAL, "The undiscounted sum of its rewards."),
    "discounted_return": (_REAL, "Its rewards discounted to the first step."),
}
"""``episodes.parquet``: one usable episode."""

REJECTED_COLUMNS: Columns = {
    "report_id": (_TEXT, "The report left out."),
    "run_id": (_TEXT, "Its episode."),
    "step": (_WHOLE, "Its step."),
    "reason": (
        _TEXT,
        "duplicate; or why its whole episode cannot be used: expired, mixed_identity, overlap, gap, unfinished, "
        "ends_twice, other_horizon, broken_chain.",
    ),
}
"""``rejected.parquet``: one landed row that is not in ``steps.parquet``."""

SNAPSHOT_TABLES: dict[str, Columns] = {
    "steps": STEP_COLUMNS,
    "episodes": EPISODE_COLUMNS,
    "rejected": REJECTED_COLUMNS,
}


def schema_of(columns: Columns) -> pa.Schema:
    """As Arrow has it; everything is nullable."""
    return pa.schema([(name, kind) for name, (kind, _) in columns.items()])
