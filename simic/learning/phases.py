"""The phases of a training, as generators: each update yields one record, and whoever listens changes nothing.

E sequences of the store; rows are positions among them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from simic.contracts.config import TrainConfig
from simic.contracts.errors import TrainingFailure
from simic.learning.learner import Learner
from simic.learning.losses import Loss, Targets, cloning_loss, value_fit_loss, vtrace_loss
from simic.learning.rates import Schedule
from simic.replay.batch import SequenceBatch
from simic.replay.sampler import PassSampler
from simic.replay.store import GraphStore
from simic.runtime.seeds import generator

__all__ = ["Record", "check_commitment", "cloning", "fitted_scale", "round_rows", "value_fit", "vtrace_passes"]

Rows = NDArray[np.int64]

CLONING_SHARE = 0.25
"""Of the peak policy rate: imitation has clean gradients and overshoots at the rate that V-trace needs."""


class Record(NamedTuple):
    """One optimiser step."""

    update: int
    """Counted over all phases and rounds."""
    phase: str
    metrics: dict[str, float]


def cloning(
    learner: Learner, store: GraphStore, sampler: PassSampler, config: TrainConfig, passes: int
) -> Iterator[Record]:
    """Imitate the log, so that the first ratios are near 1."""

    def loss(batch: SequenceBatch) -> Loss:
        return cloning_loss(learner.network, batch, config.network.exploration)

    return _supervised(
        "cloning", learner, store, sampler, passes, Schedule.constant(config.warmup_updates, CLONING_SHARE), loss
    )


def value_fit(
    learner: Learner, store: GraphStore, sampler: PassSampler, config: TrainConfig, passes: int
) -> Iterator[Record]:
    """Fit the value of the behaviour, so that the first advantages are centred."""

    def loss(batch: SequenceBatch) -> Loss:
        return value_fit_loss(learner.network, batch)

    return _supervised(
        "value_fit", learner, store, sampler, passes, Schedule.constant(config.warmup_updates, 1.0), loss
    )


def vtrace_passes(
    learner: Learner,
    store: GraphStore,
    sampler: PassSampler,
    passes: list[Rows],
    schedule: Schedule,
    targets: Targets,
    *,
    min_commit_rate: float,
) -> Iterator[Record]:
    """One counted pass over each entry of ``passes``.

    Raises TrainingFailure at the end of a pass in which the policy would hardly commit to anything any more.
    """
    position = 0
    for rows in passes:
        seen: list[dict[str, float]] = []
        for ids in sampler.draw_pass(store.sequences.run_ids, rows):
            loss = vtrace_loss(learner.network, store.batch(ids), targets)
            metrics = learner.update(loss, schedule, position)
            seen.append(metrics)
            position += 1
            yield Record(learner.updates, "vtrace", metrics)
        check_commitment(seen, min_commit_rate)


@torch.no_grad()
def fitted_scale(learner: Learner, store: GraphStore, batch_sequences: int) -> float:
    """Points: deviation of return to go around the present value, over all steps; at least 1 % of the value scale.

    Advantages are divided by this one number from then on, whatever a batch or a later round looks like.
    """
    residuals = []
    for start in range(0, len(store), batch_sequences):
        batch = store.batch(np.arange(start, min(start + batch_sequences, len(store))))
        values = batch.to_time_major(learner.network.value(batch.steps))
        residuals.append((batch.returns - values)[batch.valid].double())
    least = 0.01 * float(learner.network.value_scale)
    return max(least, float(torch.cat(residuals).std(correction=0)))


def round_rows(store: GraphStore, sampler: PassSampler, passes: int, old_share: float, seed: int) -> list[Rows]:
    """For each pass: all episodes never seen before, and at most ``old_share`` as many of those with passes left.

    The earlier ones are drawn anew for every pass, without favour, and never beyond what their passes allow.
    """
    run_ids = store.sequences.run_ids
    counts, left = sampler.passes_of(run_ids), sampler.passes_left(run_ids)
    new = np.flatnonzero(counts == 0)
    out: list[Rows] = []
    for index in range(passes):
        available = np.flatnonzero((counts > 0) & (left > 0))
        limit = len(available) if not len(new) else min(len(available), int(old_share * len(new)))
        old = np.sort(generator(seed, "old", index).permutation(available)[:limit])
        left[old] -= 1
        rows = np.concatenate([new[left[new] > index], old])
        if len(rows):
            out.append(rows.astype(np.int64))
    return out


def _supervised(
    phase: str,
    learner: Learner,
    store: GraphStore,
    sampler: PassSampler,
    passes: int,
    schedule: Schedule,
    loss: Callable[[SequenceBatch], Loss],
) -> Iterator[Record]:
    position = 0
    for _ in range(passes):
        for ids in sampler.draw_pass(store.sequences.run_ids, np.arange(len(store))):
            metrics = learner.update(loss(store.batch(ids)), schedule, position)
            position += 1
            yield Record(learner.updates, phase, metrics)


def check_commitment(seen: list[dict[str, float]], least: float) -> None:
    """Without a single state in which a seed could be kept there is nothing to judge by; the gate judges then."""
    if not any(metrics["fossilize_legal"] for metrics in seen):
        return
    rate = float(np.mean([metrics["commit_rate"] for metrics in seen]))
    if rate < least:
        raise TrainingFailure(
            f"the policy would commit {rate:.4f} seeds per episode, less than train.min_commit_rate {least}: it has "
            "collapsed to never growing. Collect new episodes, lower the passes or raise train.entropy_bonus"
        )
