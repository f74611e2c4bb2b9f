"""Read the rows of a snapshot as sequences, states, masks and steps, and check that they can be trained on.

Shapes: N steps, E sequences (episodes), K blueprints.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]
import torch
from numpy.typing import NDArray

from simic.contracts.batches import Masks, Observations
from simic.contracts.errors import ContractError
from simic.contracts.names import is_learned
from simic.contracts.results.receipts import SnapshotManifest
from simic.replay.batch import Steps
from simic.replay.decode import actions_of, column, flags, masks_of, numbers, observations_of, propensities_of, texts
from simic.snapshots.parts import read_rows
from simic.snapshots.schema import REPORT_COLUMNS

__all__ = ["EpisodeBatch", "Sequences", "episode_batch_of", "read_first", "read_parts", "read_split"]

_SNAPSHOT_COLUMNS = (
    "run_id", "step", "set", "family", "host_key", "controller", "policy_version", "branch_of", "branch_step", "reward",
    "return_to_go", "terminated", "truncated",
)  # fmt: skip
_HEAD_COLUMNS = (
    "run_id", "policy_version", "controller", "set", "family", "host_key", "branch_of", "branch_step",
)  # fmt: skip
_BATCH_ROWS = 8192


class Sequences(NamedTuple):
    """Columns of episodes, one row each."""

    run_ids: tuple[str, ...]
    policy_versions: tuple[str | None, ...]
    controllers: tuple[str, ...]
    sets: tuple[str, ...]
    families: tuple[str, ...]
    host_keys: NDArray[np.int64]
    starts: NDArray[np.int64]
    """[E]: first step of each episode."""
    lengths: NDArray[np.int64]
    """[E]"""
    branch_of: tuple[str | None, ...]
    """Run id of each branch's parent, which may lie outside the data; None for other episodes."""
    branch_steps: NDArray[np.int64]
    """[E]: step at which a branch leaves its parent, -1 for other episodes."""


class EpisodeBatch(NamedTuple):
    """Whole episodes of a snapshot, checked."""

    sequences: Sequences
    steps: Steps
    masks: Masks
    states: Observations
    """Observations of the N steps."""
    finals: Observations
    """Observations of the E final states."""


def episode_batch_of(table: pa.Table, blueprints: tuple[str, ...], gamma: float) -> EpisodeBatch:
    """Decode rows sorted by (run_id, step); raise ContractError for the first inconsistency."""
    sequences = _sequences(table)
    last = sequences.starts + sequences.lengths - 1
    states = observations_of(column(table, "state"), blueprints)
    finals = observations_of(_final_states(table, last), blueprints)
    masks = masks_of(column(table, "available"), states.slot_ptr, blueprints)
    return EpisodeBatch(sequences, _steps(table, last, blueprints, gamma), masks, states, finals)


def read_split(manifest: SnapshotManifest, split: str) -> pa.Table:
    """Return all rows of a split, by (run_id, step)."""
    return _table(read_rows(manifest, split, _SNAPSHOT_COLUMNS, REPORT_COLUMNS, batch_rows=_BATCH_ROWS))


def read_first(manifest: SnapshotManifest, split: str, rows: int) -> pa.Table:
    """Return the first episodes of a split: about ``rows`` rows, and at least one episode."""
    table = _table(read_rows(manifest, split, _SNAPSHOT_COLUMNS, REPORT_COLUMNS, batch_rows=rows, limit=rows + 1))
    if table.num_rows <= rows:
        return table
    whole, _ = _split_last(table)
    return whole if whole.num_rows else read_first(manifest, split, 4 * rows)


def read_parts(
    manifest: SnapshotManifest,
    split: str,
    rows: int,
    report_columns: tuple[str, ...] = REPORT_COLUMNS,
    further: tuple[str, ...] = (),
) -> Iterator[pa.Table]:
    """Yield the rows of a split in order, whole episodes of about ``rows`` rows at a time.

    ``further`` names columns of ``steps.parquet`` besides those that ``episode_batch_of`` needs.
    """
    rest: pa.Table | None = None
    for batch in read_rows(manifest, split, (*_SNAPSHOT_COLUMNS, *further), report_columns, batch_rows=rows):
        table = pa.Table.from_batches([batch] if rest is None else [*rest.to_batches(), batch])
        whole, rest = _split_last(table)
        if whole.num_rows:
            yield whole
    if rest is not None and rest.num_rows:
        yield rest


def _split_last(table: pa.Table) -> tuple[pa.Table, pa.Table]:
    """Split off the last episode, which may continue."""
    if not table.num_rows:
        return table, table
    run_ids = column(table, "run_id").cast(pa.string())
    whole = pc.index(run_ids, run_ids[-1]).as_py()
    return table.slice(0, whole), table.slice(whole)


def _table(batches: Iterator[pa.RecordBatch]) -> pa.Table:
    return pa.Table.from_batches(list(batches))


def _sequences(table: pa.Table) -> Sequences:
    """Return the episodes; rows must be sorted by (run_id, step), with steps 0, 1, 2 ... to an end."""
    if not table.num_rows:
        empty = np.zeros(0, dtype=np.int64)
        return Sequences((), (), (), (), (), empty, empty, empty, (), empty)
    run_id = column(table, "run_id").cast(pa.string())
    starts_here = np.concatenate([[True], pc.not_equal(run_id[1:], run_id[:-1]).to_numpy(zero_copy_only=False)])
    starts = np.flatnonzero(starts_here).astype(np.int64)
    lengths = np.diff(np.append(starts, table.num_rows))
    heads = table.select(list(_HEAD_COLUMNS)).take(starts)
    run_ids = _texts(heads, "run_id")
    step = numbers(column(table, "step"), np.int64, "step")
    expected = np.arange(table.num_rows) - np.repeat(starts, lengths)
    if len(set(run_ids)) != len(run_ids) or (step != expected).any():
        row = int(np.argmax(step != expected))
        raise ContractError(f"rows must be whole episodes in order; run {run_id[row]} has a gap at row {row}")
    controllers, versions = _texts(heads, "controller"), texts(column(heads, "policy_version"))
    _require_versions(run_ids, controllers, versions)
    return Sequences(
        run_ids=run_ids,
        policy_versions=versions,
        controllers=controllers,
        sets=_texts(heads, "set"),
        families=_texts(heads, "family"),
        host_keys=numbers(column(heads, "host_key"), np.int64, "host_key"),
        starts=starts,
        lengths=lengths.astype(np.int64),
        branch_of=texts(column(heads, "branch_of")),
        branch_steps=numbers(pc.fill_null(column(heads, "branch_step"), -1), np.int64, "branch_step"),
    )


def _require_versions(run_ids: tuple[str, ...], controllers: tuple[str, ...], versions: tuple[str | None, ...]) -> None:
    """Raise ContractError for an episode of a learned controller without the version of its policy."""
    for run_id, controller, version in zip(run_ids, controllers, versions, strict=True):
        if is_learned(controller) and version is None:
            raise ContractError(f"run {run_id} of controller {controller!r} has no policy_version")


def _texts(table: pa.Table, name: str) -> tuple[str, ...]:
    values = texts(column(table, name))
    if any(value is None for value in values):
        raise ContractError(f"{name}: absent is not allowed here")
    return tuple(value for value in values if value is not None)


def _final_states(table: pa.Table, last: NDArray[np.int64]) -> pa.Array:
    """Return [E]: the state after each episode's last step."""
    finals = column(table, "final_state")
    present = pc.is_valid(finals).to_numpy(zero_copy_only=False)
    expected = np.zeros(table.num_rows, dtype=np.bool_)
    expected[last] = True
    if (present != expected).any():
        raise ContractError("final_state must be on the last row of each episode and nowhere else")
    return finals.take(pa.array(last))


def _steps(table: pa.Table, last: NDArray[np.int64], blueprints: tuple[str, ...], gamma: float) -> Steps:
    actions = actions_of(column(table, "action"), blueprints)
    propensities = propensities_of(column(table, "log_prob_behaviour"), actions)
    terminated = flags(column(table, "terminated"), "terminated")
    ends = terminated | flags(column(table, "truncated"), "truncated")
    if not ends[last].all() or ends.sum() != len(last):
        raise ContractError("terminated or truncated must be on the last row of each episode and nowhere else")
    reward, returns = (_finite(table, name) for name in ("reward", "return_to_go"))
    return Steps(
        actions=torch.from_numpy(actions),
        log_prob_heads=torch.from_numpy(propensities.heads),
        log_prob_behaviour=torch.from_numpy(propensities.joint),
        rewards=torch.from_numpy(reward),
        discounts=torch.from_numpy(np.where(terminated, 0.0, gamma).astype(np.float32)),
        returns=torch.from_numpy(returns),
    )


def _finite(table: pa.Table, name: str) -> NDArray[Any]:
    values = numbers(column(table, name), np.float32, name)
    if not np.isfinite(values).all():
        raise ContractError(f"{name} must be finite in every row")
    return values
