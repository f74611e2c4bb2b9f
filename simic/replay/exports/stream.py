"""The episodes of a snapshot as columns, a bounded number of rows at a time.

Shapes: N steps, E episodes, G = N + E graphs, A heads, S slots of all steps, K blueprints.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]
from numpy.typing import NDArray

from simic.contracts.batches import Masks
from simic.contracts.errors import ContractViolation
from simic.contracts.receipts import SnapshotManifest
from simic.controllers.features import encode
from simic.controllers.graph import GraphBatch
from simic.replay.arrow import column, flags
from simic.replay.columns import Propensities, join
from simic.replay.rows import part_of, read_parts

__all__ = ["EpisodeInfo", "Episodes", "stream_episodes"]

_INFO = ("run_id", "policy_version", "controller", "set", "family", "host_key")


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


def stream_episodes(
    manifest: SnapshotManifest, split: str, blueprints: tuple[str, ...], rows: int
) -> Iterator[Episodes]:
    """All episodes of ``split`` in a verified snapshot, about ``rows`` steps at a time and never part of one.

    The columns are those that ``GraphStore.load`` makes of the same rows, value by value. ``blueprints`` is the
    vocabulary of the hosts. Raises ContractViolation for rows that training would refuse.
    """
    seen: set[str] = set()
    for table in read_parts(manifest, split, rows):
        episodes = _episodes(table, blueprints)
        run_ids = {info.run_id for info in episodes.infos}
        if run_ids & seen:
            raise ContractViolation("rows must be whole episodes in order; a run's rows stand in two places")
        seen |= run_ids
        yield episodes


def _episodes(table: pa.Table, blueprints: tuple[str, ...]) -> Episodes:
    # Discounts are no part of an export, so any gamma will do.
    part = part_of(table, blueprints, gamma=1.0)
    heads = table.select(list(_INFO)).take(part.sequences.starts).to_pylist()
    return Episodes(
        infos=[EpisodeInfo(**head) for head in heads],
        starts=part.sequences.starts,
        lengths=part.sequences.lengths,
        graphs=encode(join(part.states, part.finals)),
        masks=part.masks,
        actions=part.steps.actions.numpy(),
        log_probs=Propensities(part.steps.log_prob_heads.numpy(), part.steps.log_prob_behaviour.numpy()),
        rewards=part.steps.rewards.numpy(),
        returns=part.steps.returns.numpy(),
        terminated=flags(column(table, "terminated"), "terminated"),
        truncated=flags(column(table, "truncated"), "truncated"),
    )
