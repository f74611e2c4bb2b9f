"""The phases of a training run, as generators that yield one record per update.

E sequences of the data set; rows are positions among them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from simic.contracts.settings.training import TrainConfig
from simic.controllers.network import NetworkShape, PolicyNetwork, fit_normaliser
from simic.learning.learner import Learner
from simic.learning.losses import Loss, cloning_loss, value_fit_loss
from simic.learning.rates import LrSchedule
from simic.numerics.ragged import concatenated_ranges
from simic.replay.batch import SequenceBatch
from simic.replay.dataset import GraphDataset
from simic.replay.sampler import PassSampler
from simic.runtime.seeds import derive, generator

__all__ = [
    "Record",
    "cloning",
    "fitted_scale",
    "fresh_network",
    "means",
    "round_rows",
    "supervised_sampler",
    "value_fit",
]

Rows = NDArray[np.int64]

LEAST_VALUE_SCALE = 1e-3
"""Least value scale in points, for returns that do not vary."""
_UNBOUNDED = 1 << 30

CLONING_SHARE = 0.25
"""Share of the peak policy rate: cloning has low-noise gradients and overshoots at the rate of V-trace."""


class Record(NamedTuple):
    """Metrics of one optimiser step."""

    update: int
    """Counted over all phases and rounds."""
    phase: str
    metrics: dict[str, float]
    number: int = 0
    """Pass of the phase, from 0."""


def fresh_network(store: GraphDataset, config: TrainConfig, seed: int) -> PolicyNetwork:
    """Return an untrained network with the data's feature statistics and value scale.

    The scale is that of the returns of episodes that ended; of all, if none did.
    """
    network = PolicyNetwork(NetworkShape.of(config.network, store.blueprints), seed=derive(seed, "network"))
    network.set_normaliser(fit_normaliser(store.statistics_graphs(), store.blueprints))
    returns = _ended_returns(store).double()
    network.set_value_scale(float(returns.mean()), max(LEAST_VALUE_SCALE, float(returns.std(correction=0))))
    network.first_epoch_penalty.fill_(config.network.first_epoch_penalty)
    return network.to(store.device)


def _ended_returns(store: GraphDataset) -> Tensor:
    """Return float32 [steps]: the returns to go of episodes that ended; those of all if none did."""
    if store.has_end.all() or not store.has_end.any():
        return store.steps.returns
    rows = concatenated_ranges(store.sequences.starts[store.has_end], store.sequences.lengths[store.has_end])
    return store.steps.returns[torch.from_numpy(rows)]


def cloning(
    learner: Learner, store: GraphDataset, sampler: PassSampler, config: TrainConfig, passes: int
) -> Iterator[Record]:
    """Clone the behaviour, so that the first importance ratios are near 1."""

    def loss(batch: SequenceBatch) -> Loss:
        return cloning_loss(learner.network, batch, config.network.exploration)

    return _supervised(
        "cloning", learner, store, sampler, passes, LrSchedule.constant(config.warmup_updates, CLONING_SHARE), loss
    )


def value_fit(
    learner: Learner, store: GraphDataset, sampler: PassSampler, config: TrainConfig, passes: int
) -> Iterator[Record]:
    """Fit the value to the behaviour's returns, so that the first advantages are centred."""

    def loss(batch: SequenceBatch) -> Loss:
        return value_fit_loss(learner.network, batch)

    return _supervised(
        "value_fit", learner, store, sampler, passes, LrSchedule.constant(config.warmup_updates, 1.0), loss
    )


@torch.no_grad()
def fitted_scale(learner: Learner, store: GraphDataset, batch_sequences: int) -> float:
    """Return the advantage scale in points: the deviation of returns to go around the present values.

    Partial returns of episodes that were cut off do not count unless there are no others. It is at least 1 % of the
    value scale. Advantages are divided by it in all batches and later rounds.
    """
    ended, residuals = store.ordinary[store.has_end[store.ordinary]], []
    rows = ended if len(ended) else store.ordinary
    for start in range(0, len(rows), batch_sequences):
        batch = store.batch(rows[start : start + batch_sequences])
        values = batch.to_time_major(learner.network.value(batch.steps))
        residuals.append(batch.valid_only(batch.returns - values).double())
    least = 0.01 * float(learner.network.value_scale)
    return max(least, float(torch.cat(residuals).std(correction=0)))


def round_rows(
    store: GraphDataset, ordinary: Rows, sampler: PassSampler, passes: int, replay_ratio: float, seed: int
) -> list[Rows]:
    """Return the rows of each pass over ``ordinary``: all new ones, and at most ``replay_ratio`` times as many others.

    Earlier episodes are drawn uniformly for every pass, among those with passes left.
    """
    run_ids = [store.sequences.run_ids[row] for row in ordinary.tolist()]
    counts, left = sampler.passes_of(run_ids), sampler.passes_left(run_ids)
    new = np.flatnonzero(counts == 0)
    out: list[Rows] = []
    for index in range(passes):
        available = np.flatnonzero((counts > 0) & (left > 0))
        limit = len(available) if not len(new) else min(len(available), int(replay_ratio * len(new)))
        old = np.sort(generator(seed, "old", index).permutation(available)[:limit])
        left[old] -= 1
        rows = np.concatenate([new[left[new] > index], old])
        if len(rows):
            out.append(ordinary[rows])
    return out


def supervised_sampler(config: TrainConfig, seed: int, phase: str) -> PassSampler:
    """Return a sampler for supervised passes, which do not count against ``train.max_passes``."""
    return PassSampler(seed=derive(seed, phase), batch_sequences=config.batch_sequences, max_passes=_UNBOUNDED)


def means(records: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Return the mean of each metric over the records that have it; a metric may be absent from some."""
    names = dict.fromkeys(name for metrics in records for name in metrics)
    return {name: float(np.mean([metrics[name] for metrics in records if name in metrics])) for name in names}


def _supervised(
    phase: str,
    learner: Learner,
    store: GraphDataset,
    sampler: PassSampler,
    passes: int,
    schedule: LrSchedule,
    loss: Callable[[SequenceBatch], Loss],
) -> Iterator[Record]:
    def loss_of(ids: Rows, part: slice) -> Loss:
        return loss(store.batch(ids[part]))

    position = 0
    for number in range(passes):
        for ids in sampler.draw_pass(store.sequences.run_ids, store.ordinary):
            metrics = learner.update(len(ids), partial(loss_of, ids), schedule, position)
            position += 1
            yield Record(learner.updates, phase, metrics, number)
