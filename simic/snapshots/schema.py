"""The columns of a snapshot's Parquet files, for curation, replay and the documentation."""

from __future__ import annotations

import pyarrow as pa  # type: ignore[import-untyped]

__all__ = [
    "DIFFICULTY_COLUMNS",
    "EPISODE_COLUMNS",
    "REJECTED_COLUMNS",
    "REPORT_COLUMNS",
    "ROW_INDEX_COLUMNS",
    "SNAPSHOT_TABLES",
    "STEP_COLUMNS",
    "schema_of",
]

Columns = dict[str, tuple[pa.DataType, str]]

_TEXT, _WHOLE, _REAL, _TRUTH = pa.string(), pa.int64(), pa.float64(), pa.bool_()


_IDENTITY: Columns = {
    "set": (_TEXT, "The host set."),
    "family": (_TEXT, "The host's family."),
    "host_key": (_WHOLE, "Fixes the host's data, weights and noise."),
    "split": (_TEXT, "train, validation or test, by the host's key."),
    "controller": (_TEXT, "Name of the controller that acted."),
    "policy_version": (_TEXT, "Digest of the acting policy; null for a controller without weights."),
    "branch_of": (
        _TEXT,
        "Parent of a branch, the episode that it repeats up to `branch_step`; null in other episodes. Averages over "
        "what a controller does leave branches out.",
    ),
    "branch_step": (_WHOLE, "Step of a branch at which the action was enumerated, not chosen; null in other episodes."),
}
_TERMS: Columns = {
    "reward_progress": (_REAL, "Points for validation accuracy gained."),
    "reward_rent": (_REAL, "Points paid for parameters; zero or negative."),
    "reward_penalty": (_REAL, "Points paid for a panic; zero or negative."),
    "reward_shaping": (_REAL, "Points for the change of the potential; null where the family has none."),
    "reward_effort": (_REAL, "Points paid for germinating and pruning; null where the family has no such price."),
}

REPORT_COLUMNS = ("state", "final_state", "available", "action", "log_prob_behaviour")
"""Columns of the reports that a snapshot does not copy but reads from the parts it links."""
STEP_COLUMNS: Columns = {
    "run_id": (_TEXT, "The episode; rows are ordered by it, then by step."),
    "step": (_WHOLE, "From 0, without gaps."),
    "report_id": (_TEXT, "Id of the report."),
    "content_id": (pa.uuid(), "First half of the report's `content_digest`."),
    **_IDENTITY,
    "op": (
        _TEXT,
        "The operation chosen. States, masks and actions lie in the parts that the snapshot links; while the "
        "lake has the report too, the view `reports` shows them.",
    ),
    "accuracy_before": (_REAL, "Validation accuracy before the window."),
    "accuracy_after": (
        _REAL,
        "Validation accuracy after the window; on the last step, that of the network that is kept.",
    ),
    "test_accuracy": (_REAL, "Test accuracy, on the last step only; no learner uses it."),
    "rent_parameters": (_WHOLE, "Parameters of seeds alive or fossilised during the window."),
    "committed_parameters": (_WHOLE, "Parameters of fossilised seeds after the window."),
    "has_governor": (_TRUTH, "The governor ended the episode here."),
    "terminated": (_TRUTH, "The episode ended here by itself."),
    "truncated": (_TRUTH, "The episode was cut off here."),
    "contribution": (_REAL, "The largest measured of any seed after the window; null where none was measured."),
    "is_hacking": (
        _TRUTH,
        "A seed claims over `curate.flags.hacking_ratio` (5) times what the host has improved since its start; null "
        "without contribution.",
    ),
    "is_ransomware": (
        _TRUTH,
        "A contribution above `curate.flags.ransom_contribution` (0.1) though the host has lost over "
        "`curate.flags.ransom_loss` (0.2) since its start; null without contribution.",
    ),
    **_TERMS,
    "potential": (_REAL, "Potential of the state, in points; null if the family has none."),
    "reward": (_REAL, "The sum of the terms that are not null."),
    "return_to_go": (_REAL, "Discounted rewards from here to the last step; nothing is added for a truncated episode."),
}
"""``steps.parquet``: one step of a usable episode."""

ROW_INDEX_COLUMNS: Columns = {
    "part": (_WHOLE, "Index of the part in the manifest's `ledger_parts`; the snapshot links it under its file name."),
    "row": (_WHOLE, "From 0, in that part."),
}
"""``row_index.parquet``: part and row of the report behind each row of ``steps.parquet``, in the same order."""

EPISODE_COLUMNS: Columns = {
    "run_id": (_TEXT, "The episode; rows are ordered by it."),
    **_IDENTITY,
    "versions_behind": (_WHOLE, "Newer policies, promoted here or acting in whole episodes; null without a policy."),
    "quality": (
        _REAL,
        "From 0 to 1: the product of the shares of active seeds whose contribution was measured, of probed seeds with "
        "healthy gradients, and of decisions likelier than exp(-10).",
    ),
    "steps": (_WHOLE, "Rows in `steps.parquet`."),
    "terminated": (_TRUTH, "The episode ended by itself."),
    "truncated": (_TRUTH, "The episode was cut off."),
    "has_governor": (_TRUTH, "The governor ended the episode."),
    "germinated": (_WHOLE, "Seeds placed."),
    "fossilized": (_WHOLE, "Seeds kept."),
    "pruned": (_WHOLE, "Number of seeds that the controller pruned."),
    "accuracy_before": (_REAL, "Validation accuracy of the host before growth."),
    "accuracy_after": (_REAL, "Validation accuracy of the network that is kept."),
    "test_accuracy": (_REAL, "Test accuracy of the network that is kept; no learner uses it."),
    "committed_parameters": (_WHOLE, "Parameters of fossilised seeds."),
    "hacking_steps": (_WHOLE, "Steps with `is_hacking`."),
    "ransomware_steps": (_WHOLE, "Steps with `is_ransomware`."),
    **_TERMS,
    "episode_return": (_REAL, "Undiscounted sum of rewards."),
    "discounted_return": (_REAL, "Rewards discounted to the first step."),
}
"""``episodes.parquet``: one usable episode."""

REJECTED_COLUMNS: Columns = {
    "report_id": (_TEXT, "Id of the report that was left out."),
    "run_id": (_TEXT, "Its episode."),
    "step": (_WHOLE, "Its step."),
    "reason": (
        _TEXT,
        "duplicate (same id and content), conflict (other content under its id), same_content (under another id); or "
        "why its whole episode cannot be used: judging, expired, stale, mixed_identity, overlap, gap, unfinished, "
        "ends_twice, other_horizon, broken_chain, unnamed_policy, evicted.",
    ),
    "set": _IDENTITY["set"],
    "host_key": _IDENTITY["host_key"],
    "controller": _IDENTITY["controller"],
    "policy_version": _IDENTITY["policy_version"],
}
"""``rejected.parquet``: one landed row that is not in ``steps.parquet``."""

DIFFICULTY_COLUMNS: Columns = {
    "set": _IDENTITY["set"],
    "family": _IDENTITY["family"],
    "host_key": _IDENTITY["host_key"],
    "episodes": (_WHOLE, "Usable episodes on the host, without branches."),
    "mean_return": (_REAL, "Mean undiscounted return of these episodes, in points of the snapshot's reward family."),
    "difficulty": (_REAL, "Rank among the training hosts of the set: 0 the easiest, 1 the hardest."),
}
"""``difficulty.parquet``: one training host."""

SNAPSHOT_TABLES: dict[str, Columns] = {
    "steps": STEP_COLUMNS,
    "row_index": ROW_INDEX_COLUMNS,
    "episodes": EPISODE_COLUMNS,
    "rejected": REJECTED_COLUMNS,
    "difficulty": DIFFICULTY_COLUMNS,
}


def schema_of(columns: Columns) -> pa.Schema:
    """Return the Arrow schema; every column is nullable."""
    return pa.schema([(name, kind) for name, (kind, _) in columns.items()])
