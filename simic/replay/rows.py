"""The rows of a snapshot as sequences, states, masks and steps; what cannot teach is refused.

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
from simic.contracts.errors import ContractViolation
from simic.contracts.receipts import SnapshotManifest
from simic.lake.held import read_rows
from simic.replay.arrow import column, flags, numbers, texts
from simic.replay.assemble import Steps
from simic.replay.columns import actions_of, masks_of, observations_of, propensities_of

__all__ = ["Part", "Sequences", "part_of", "read_first", "read_parts", "read_split"]

_KEPT = (
    "run_id", "step", "set", "family", "host_key", "controller", "policy_version", "reward", "return_to_go",
    "terminated", "truncated",
)  # fmt: skip
_TOLD = ("state", "final_state", "available", "action", "log_prob_behaviour")
_BATCH_ROWS = 8192
_LEARNED = "learned"


class Sequences(NamedTuple):
    """One row per episode."""

    run_ids: tuple[str, ...]
    policy_versions: tuple[str | None, ...]
    controllers: tuple[str, ...]
    sets: tuple[str, ...]
    families: tuple[str, ...]
    host_keys: NDArray[np.int64]
    starts: NDArray[np.int64]
    """[E] first step of each."""
    lengths: NDArray[np.int64]
    """[E]"""


class Part(NamedTuple):
    """Some whole episodes of a snapshot, checked."""

    sequences: Sequences
    steps: Steps
    masks: Masks
    states: Observations
    """Of the N steps."""
    finals: Observations
    """Of the E states after the last steps."""


def part_of(table: pa.Table, blueprints: tuple[str, ...], gamma: float) -> Part:
    """Everything in rows sorted by (run_id, step), or ContractViolation for the first thing that is wrong."""
    sequences = _sequences(table)
    last = sequences.starts + sequences.lengths - 1
    states = observations_of(column(table, "state"), blueprints)
    finals = observations_of(_final_states(table, last), blueprints)
    masks = masks_of(column(table, "available"), states.slot_ptr, blueprints)
    return Part(sequences, _steps(table, last, blueprints, gamma), masks, states, finals)


def read_split(manifest: SnapshotManifest, split: str) -> pa.Table:
    """All rows of a split, by (run_id, step)."""
    return _table(read_rows(manifest, split, _KEPT, _TOLD, batch_rows=_BATCH_ROWS))


def read_first(manifest: SnapshotManifest, split: str, rows: int) -> pa.Table:
    """The first episodes of a split, about ``rows`` rows of them and at least one episode."""
    table = _table(read_rows(manifest, split, _KEPT, _TOLD, batch_rows=rows, limit=rows + 1))
    if table.num_rows <= rows:
        return table
    whole, _ = _split_last(table)
    return whole if whole.num_rows else read_first(manifest, split, 4 * rows)


def read_parts(manifest: SnapshotManifest, split: str, rows: int, told: tuple[str, ...] = _TOLD) -> Iterator[pa.Table]:
    """The rows of a split in order, about ``rows`` at a time, never with an episode cut in two."""
    rest: pa.Table | None = None
    for batch in read_rows(manifest, split, _KEPT, told, batch_rows=rows):
        table = pa.Table.from_batches([batch] if rest is None else [*rest.to_batches(), batch])
        whole, rest = _split_last(table)
        if whole.num_rows:
            yield whole
    if rest is not None and rest.num_rows:
        yield rest


def _split_last(table: pa.Table) -> tuple[pa.Table, pa.Table]:
    """All episodes but the last, and the last, which may go on."""
    if not table.num_rows:
        return table, table
    run_ids = column(table, "run_id").cast(pa.string())
    whole = pc.index(run_ids, run_ids[-1]).as_py()
    return table.slice(0, whole), table.slice(whole)


def _table(batches: Iterator[pa.RecordBatch]) -> pa.Table:
    return pa.Table.from_batches(list(batches))


def _sequences(table: pa.Table) -> Sequences:
    """Episode bounds; rows must come sorted by (run_id, step), with steps 0, 1, 2 ... up to an end."""
    if not table.num_rows:
        empty = np.zeros(0, dtype=np.int64)
        return Sequences((), (), (), (), (), empty, empty, empty)
    run_id = column(table, "run_id").cast(pa.string())
    starts_here = np.concatenate([[True], pc.not_equal(run_id[1:], run_id[:-1]).to_numpy(zero_copy_only=False)])
    starts = np.flatnonzero(starts_here).astype(np.int64)
    lengths = np.diff(np.append(starts, table.num_rows))
    heads = table.select(["run_id", "policy_version", "controller", "set", "family", "host_key"]).take(starts)
    run_ids = _texts(heads, "run_id")
    step = numbers(column(table, "step"), np.int64, "step")
    expected = np.arange(table.num_rows) - np.repeat(starts, lengths)
    if len(set(run_ids)) != len(run_ids) or (step != expected).any():
        row = int(np.argmax(step != expected))
        raise ContractViolation(f"rows must be whole episodes in order; run {run_id[row]} has a gap at row {row}")
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
    )


def _require_versions(run_ids: tuple[str, ...], controllers: tuple[str, ...], versions: tuple[str | None, ...]) -> None:
    """A controller with weights acted by one policy, and without knowing which its propensities mean nothing."""
    for run_id, controller, version in zip(run_ids, controllers, versions, strict=True):
        if controller == _LEARNED and version is None:
            raise ContractViolation(f"run {run_id} of controller {_LEARNED!r} has no policy_version")


def _texts(table: pa.Table, name: str) -> tuple[str, ...]:
    values = texts(column(table, name))
    if any(value is None for value in values):
        raise ContractViolation(f"{name}: absent is not allowed here")
    return tuple(value for value in values if value is not None)


def _final_states(table: pa.Table, last: NDArray[np.int64]) -> pa.Array:
    """[E]: the state after each episode's last step."""
    finals = column(table, "final_state")
    present = pc.is_valid(finals).to_numpy(zero_copy_only=False)
    expected = np.zeros(table.num_rows, dtype=np.bool_)
    expected[last] = True
    if (present != expected).any():
        raise ContractViolation("final_state must stand on the last row of each episode and nowhere else")
    return finals.take(pa.array(last))


def _steps(table: pa.Table, last: NDArray[np.int64], blueprints: tuple[str, ...], gamma: float) -> Steps:
    actions = actions_of(column(table, "action"), blueprints)
    propensities = propensities_of(column(table, "log_prob_behaviour"), actions)
    terminated = flags(column(table, "terminated"), "terminated")
    ends = terminated | flags(column(table, "truncated"), "truncated")
    if not ends[last].all() or ends.sum() != len(last):
        raise ContractViolation("terminated or truncated must stand on the last row of each episode and nowhere else")
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
        raise ContractViolation(f"{name} must be finite in every row")
    return values
