"""The episodes of a snapshot as a log to evaluate a policy on: which are used, and their rewards in ``basic`` points.

Shapes: N steps, E episodes, T time, B = E columns; time-major.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]
import torch
from numpy.typing import NDArray

from simic.contracts.batches import Masks, Observations
from simic.contracts.errors import ContractError, IntegrityError
from simic.contracts.results.receipts import SnapshotManifest
from simic.contracts.splits import Split
from simic.controllers.features import encode
from simic.controllers.heads import MaskTensors
from simic.replay.batch import Steps
from simic.replay.dataset import GraphDataset
from simic.replay.decode import column, numbers
from simic.replay.graph_table import GraphTable
from simic.replay.rows import EpisodeBatch, Sequences, episode_batch_of, read_parts
from simic.snapshots.parts import STEPS_NAME, read_rows

__all__ = ["EpisodeHead", "Log", "episode_heads", "germinated_in", "horizons_of", "read_log"]

_TERMS = ("reward_progress", "reward_rent", "reward_penalty")
"""Terms of ``basic``, which every family has: their undiscounted sum is the return of trials."""
_BATCH_ROWS = 8192


_Part: TypeAlias = tuple[EpisodeBatch, NDArray[np.float64]]
"""Decoded episodes and the points [N] of their steps."""


class EpisodeHead(NamedTuple):
    """Identity, split and controller of an episode, read without its steps."""

    run_id: str
    set: str
    host_key: int
    split: str
    controller: str
    policy_version: str | None
    branch_of: str | None
    is_truncated: bool

    @property
    def behaviour(self) -> str:
        """Return the version of the policy that acted, or the name of a controller without one."""
        return self.policy_version or self.controller


def episode_heads(manifest: SnapshotManifest) -> list[EpisodeHead]:
    """Return the episodes of all splits, in the order of their run ids.

    Raises:
        IntegrityError: if ``steps.parquet`` cannot be read.
        ContractError: if it lacks a column.
    """
    path = Path(manifest.path) / STEPS_NAME
    names = ["run_id", "set", "host_key", "split", "controller", "policy_version", "branch_of"]
    try:
        known = set(pq.read_schema(path).names)
        first = pq.read_table(path, columns=[name for name in names if name in known], filters=[("step", "=", 0)])
        cut = pq.read_table(path, columns=["run_id"], filters=[("truncated", "=", True)])
    except (OSError, pa.ArrowException) as error:
        raise IntegrityError(f"{path} cannot be read: {error}") from error
    if missing := sorted(set(names) - known - {"branch_of"}):
        raise ContractError(f"{path} has no column {', '.join(missing)}; run `simic curate` again")
    truncated = {str(value) for value in cut["run_id"].to_pylist()}
    heads = [
        EpisodeHead(
            str(row["run_id"]),
            row["set"],
            row["host_key"],
            row["split"],
            row["controller"],
            row["policy_version"],
            None if row.get("branch_of") is None else str(row["branch_of"]),
            str(row["run_id"]) in truncated,
        )
        for row in first.to_pylist()
    ]
    return sorted(heads)


def horizons_of(manifest: SnapshotManifest, split: Split) -> dict[str, int]:
    """Return the horizon of each episode of a split by its run id, without decoding the rows.

    Raises:
        ContractError: if a first row has no horizon.
    """
    by_run = dict[str, int]()
    for table in read_parts(manifest, split.value, _BATCH_ROWS, report_columns=("state",)):
        first = table.filter(pc.equal(column(table, "step"), 0))
        horizons = numbers(pc.struct_field(column(first, "state"), "horizon"), np.int64, "horizon")
        run_ids = column(first, "run_id").cast(pa.string()).to_pylist()
        by_run |= dict(zip(run_ids, horizons.tolist(), strict=True))
    return by_run


def germinated_in(manifest: SnapshotManifest, run_ids: Collection[str]) -> set[str]:
    """Return the blueprints that the given episodes germinated, without decoding their states."""
    wanted, found = pa.array(sorted(run_ids), type=pa.string()), set[str | None]()
    for split in Split:
        for batch in read_rows(manifest, split.value, ("run_id",), ("action",), batch_rows=_BATCH_ROWS):
            own = batch.filter(pc.is_in(batch.column("run_id").cast(pa.string()), value_set=wanted))
            found.update(pc.unique(pc.struct_field(own.column("action"), "blueprint")).to_pylist())
    return {name for name in found if name is not None}


class Log(NamedTuple):
    """Whole episodes with their rewards in ``basic`` points."""

    batch: EpisodeBatch
    points: NDArray[np.float64]
    """[N]"""

    @property
    def valid(self) -> NDArray[np.bool_]:
        """Return bool [T, B]: the steps of each episode."""
        lengths = self.batch.sequences.lengths
        steps: NDArray[np.bool_] = np.arange(lengths.max())[:, None] < lengths
        return steps

    def time_major(self, flat: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return [N] as [T, B]; padding repeats the last step."""
        starts, lengths = self.batch.sequences.starts, self.batch.sequences.lengths
        return flat[starts + np.minimum(np.arange(lengths.max())[:, None], lengths - 1)]

    def hosts(self) -> NDArray[np.int64]:
        """Return a number [B] per episode that is the same for episodes of one host."""
        names = [f"{name}:{key}" for name, key in zip(*self._hosts(), strict=True)]
        labels: NDArray[np.int64] = np.unique(names, return_inverse=True)[1].reshape(-1)
        return labels

    def horizons(self) -> list[int]:
        """Return the different horizons of the episodes."""
        return [int(horizon) for horizon in np.unique(self.batch.states.system["horizon"])]

    def _hosts(self) -> tuple[Sequence[str], Sequence[int]]:
        return self.batch.sequences.sets, self.batch.sequences.host_keys.tolist()

    def dataset(self, blueprints: tuple[str, ...]) -> GraphDataset:
        """Return the data set whose rewards are these points, undiscounted."""
        starts, lengths = self.batch.sequences.starts, self.batch.sequences.lengths
        total = np.concatenate([[0.0], np.cumsum(self.points)])
        to_go = np.repeat(total[starts + lengths], lengths) - total[:-1]
        steps = self.batch.steps._replace(
            rewards=torch.from_numpy(self.points.astype(np.float32)),
            discounts=(self.batch.steps.discounts > 0.0).float(),
            returns=torch.from_numpy(to_go.astype(np.float32)),
        )
        table = GraphTable.of(encode(Observations.join([self.batch.states, self.batch.finals])))
        return GraphDataset(self.batch.sequences, steps, MaskTensors.of(self.batch.masks), table, blueprints)


def read_log(
    manifest: SnapshotManifest,
    run_ids: Collection[str],
    blueprints: tuple[str, ...],
    advance: Callable[[int], None],
    unreadable: dict[str, str] | None = None,
) -> Log:
    """Return the given episodes, at least one, in the order of their run ids within each split.

    ``advance`` is called with the number of rows after each part that was read. Given ``unreadable``, episodes whose
    rows are no log are left out and added to it, by run id with the reason.

    Raises:
        ContractError: for rows that are no log: gaps, missing propensities or final states, infinite rewards; given
            ``unreadable``, if no episode is left.
    """

    def decode(table: pa.Table) -> _Part:
        return episode_batch_of(table, blueprints, manifest.gamma), _points(table)

    wanted, parts = pa.array(sorted(run_ids), type=pa.string()), list[_Part]()
    for split in Split:
        for table in read_parts(manifest, split.value, _BATCH_ROWS, further=_TERMS):
            own = table.filter(pc.is_in(column(table, "run_id").cast(pa.string()), value_set=wanted))
            advance(table.num_rows)
            if own.num_rows:
                parts += _decoded(own, decode, unreadable)
    if sum(len(batch.sequences.run_ids) for batch, _ in parts) + len(unreadable or ()) != len(wanted):
        raise ContractError(f"snapshot {manifest.path} does not hold all of the {len(wanted)} episodes asked for")
    if not parts:
        why = next(iter((unreadable or {}).values()), "none was asked for")
        raise ContractError(f"snapshot {manifest.path} holds no episode to evaluate on: {why}")
    return Log(_joined([batch for batch, _ in parts]), np.concatenate([points for _, points in parts]))


def _decoded(table: pa.Table, decode: Callable[[pa.Table], _Part], unreadable: dict[str, str] | None) -> list[_Part]:
    """Return the decoded rows; those of single episodes that cannot be decoded go to ``unreadable``, if given."""
    try:
        return [decode(table)]
    except ContractError as error:
        if unreadable is None:
            raise
        run_ids = column(table, "run_id").cast(pa.string())
        names = pc.unique(run_ids)
        if len(names) == 1:
            unreadable[names[0].as_py()] = str(error)
            return []
    middle = pc.index(run_ids, names[len(names) // 2]).as_py()
    halves = table.slice(0, middle), table.slice(middle)
    return [part for half in halves for part in _decoded(half, decode, unreadable)]


def _points(table: pa.Table) -> NDArray[np.float64]:
    points: NDArray[np.float64] = sum(
        (numbers(column(table, name), np.float64, name) for name in _TERMS), np.zeros(table.num_rows)
    )
    if not np.isfinite(points).all():
        raise ContractError(f"{', '.join(_TERMS)} must be finite in every row; run `simic curate` again")
    return points


def _joined(batches: Sequence[EpisodeBatch]) -> EpisodeBatch:
    before = np.cumsum([0, *(len(batch.steps.rewards) for batch in batches)])
    shifted = [
        batch.sequences._replace(starts=batch.sequences.starts + first)
        for batch, first in zip(batches, before[:-1], strict=True)
    ]
    columns: list[Any] = [
        np.concatenate(parts) if isinstance(parts[0], np.ndarray) else tuple(chain.from_iterable(parts))
        for parts in zip(*shifted, strict=True)
    ]
    masks = [(batch.masks.op, batch.masks.slot, batch.masks.blueprint) for batch in batches]
    return EpisodeBatch(
        Sequences(*columns),
        Steps(*(torch.cat(parts) for parts in zip(*(batch.steps for batch in batches), strict=True))),
        Masks(*(np.concatenate(parts) for parts in zip(*masks, strict=True))),
        Observations.join([batch.states for batch in batches]),
        Observations.join([batch.finals for batch in batches]),
    )
