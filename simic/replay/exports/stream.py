"""The episodes of a snapshot as columns, a bounded number of rows at a time.

Shapes: N steps, E episodes, G = N + E graphs, A heads, S slots of all steps, K blueprints.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]
from numpy.typing import NDArray

from simic.contracts.batches import Masks
from simic.contracts.errors import ContractViolation
from simic.controllers.features import encode
from simic.controllers.graph import GraphBatch
from simic.replay.arrow import column, flags, numbers
from simic.replay.columns import Propensities, actions_of, join, masks_of, observations_of, propensities_of

__all__ = ["STEPS_NAME", "EpisodeInfo", "Episodes", "stream_episodes"]

STEPS_NAME = "steps.parquet"
_INFO = ("run_id", "policy_version", "controller", "set", "family", "host_key")
_COLUMNS = (
    *_INFO, "step", "split", "state", "final_state", "available", "action", "log_prob_behaviour", "reward",
    "return_to_go", "terminated", "truncated",
)  # fmt: skip


class EpisodeInfo(NamedTuple):
    """Whose episode it is."""

    run_id: str
    policy_version: str | None
    """Null for a controller without weights."""
    controller: str
    set: str
    family: str
    host_key: int


class Episodes(NamedTuple):
    """Some whole episodes, in the snapshot's order."""

    infos: list[EpisodeInfo]
    """[E]"""
    starts: NDArray[np.int64]
    """[E] first step of each."""
    lengths: NDArray[np.int64]
    """[E]"""
    graphs: GraphBatch
    """G graphs: the state before each step, then the final state of each episode."""
    masks: Masks
    """What was legal at each step; its slots [S, ops] are those of the first N graphs."""
    actions: NDArray[np.int64]
    """[N, A], -1 where irrelevant."""
    log_probs: Propensities
    """Of the behaviour, [N, A] and [N]."""
    rewards: NDArray[np.float32]
    """[N], points."""
    returns: NDArray[np.float32]
    """[N], discounted, from the step to the last one told."""
    terminated: NDArray[np.bool_]
    """[N]"""
    truncated: NDArray[np.bool_]
    """[N]"""


def stream_episodes(path: Path, split: str, blueprints: tuple[str, ...], rows: int) -> Iterator[Episodes]:
    """All episodes of ``split`` in the snapshot at ``path``, about ``rows`` steps at a time and never part of one.

    The columns are those that ``GraphStore.load`` makes of the same rows, value by value. ``blueprints`` is the
    vocabulary of the hosts. Raises ContractViolation for rows that are not whole episodes in order.
    """
    for table in _whole_episodes(path / STEPS_NAME, split, rows):
        yield _episodes(table, blueprints)


def _whole_episodes(path: Path, split: str, rows: int) -> Iterator[pa.Table]:
    """Rows are ordered by run, so only the last run of what was read may go on."""
    pending: pa.Table | None = None
    with pq.ParquetFile(path) as file:
        for batch in file.iter_batches(batch_size=rows, columns=list(_COLUMNS)):
            table = pa.Table.from_batches([batch])
            table = table.filter(pc.equal(table.column("split"), split))
            pending = table if pending is None else pa.concat_tables([pending, table])
            if pending.num_rows >= rows:
                last = int(_starts(pending)[-1])
                if last:
                    yield pending.slice(0, last).combine_chunks()
                    pending = pending.slice(last)
    if pending is not None and pending.num_rows:
        yield pending.combine_chunks()


def _starts(table: pa.Table) -> NDArray[np.int64]:
    run = column(table, "run_id").cast(pa.string())
    first = np.ones(table.num_rows, dtype=np.bool_)
    first[1:] = pc.not_equal(run[1:], run[:-1]).to_numpy(zero_copy_only=False)
    return np.flatnonzero(first).astype(np.int64)


def _episodes(table: pa.Table, blueprints: tuple[str, ...]) -> Episodes:
    starts = _starts(table)
    lengths = np.diff(np.append(starts, table.num_rows)).astype(np.int64)
    last = starts + lengths - 1
    _check_whole(table, starts, lengths)
    finals = column(table, "final_state").take(pa.array(last))
    observations = join(observations_of(column(table, "state"), blueprints), observations_of(finals, blueprints))
    actions = actions_of(column(table, "action"), blueprints)
    heads = table.select(list(_INFO)).take(starts).to_pylist()
    return Episodes(
        infos=[EpisodeInfo(**head) for head in heads],
        starts=starts,
        lengths=lengths,
        graphs=encode(observations),
        masks=masks_of(column(table, "available"), observations.slot_ptr[: table.num_rows + 1], blueprints),
        actions=actions,
        log_probs=propensities_of(column(table, "log_prob_behaviour"), actions),
        rewards=_finite(table, "reward"),
        returns=_finite(table, "return_to_go"),
        terminated=flags(column(table, "terminated"), "terminated"),
        truncated=flags(column(table, "truncated"), "truncated"),
    )


def _check_whole(table: pa.Table, starts: NDArray[np.int64], lengths: NDArray[np.int64]) -> None:
    step = numbers(column(table, "step"), np.int64, "step")
    expected = np.arange(table.num_rows) - np.repeat(starts, lengths)
    if (step != expected).any():
        row = int(np.argmax(step != expected))
        run = column(table, "run_id")[row].as_py()
        raise ContractViolation(f"rows must be whole episodes in order: run {run} has step {step[row]} out of place")


def _finite(table: pa.Table, name: str) -> NDArray[Any]:
    values = numbers(column(table, name), np.float32, name)
    if not np.isfinite(values).all():
        raise ContractViolation(f"{name} must be finite in every row")
    return values
