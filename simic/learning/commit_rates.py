"""Whether a policy still commits: the probabilities of germinating and fossilising, on logged states.

A rate is a mean over the episodes, or steps, in which an operation was legal. So rates of several batches, or parts of
one, are pooled with these numbers as weights; their plain mean would depend on how episodes are batched.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from simic.contracts.actions import Op
from simic.contracts.batches import OP_INDEX
from simic.contracts.errors import TrainingError
from simic.controllers.network import NetworkOutput, PolicyNetwork
from simic.learning.micro_batches import RATE_WEIGHTS, add_up
from simic.replay.batch import SequenceBatch
from simic.replay.dataset import GraphDataset

__all__ = [
    "check_commit_rate",
    "commit_metrics",
    "logged_commit_rates",
    "measure_on_log",
    "pooled_rates",
]

_MOST_EPISODES = 256
"""Largest number of episodes on which a trained policy is measured."""


@torch.no_grad()
def commit_metrics(output: NetworkOutput, batch: SequenceBatch) -> dict[str, Tensor]:
    """Return probabilities [], under the policy without exploration, of germinating and of fossilising.

    ``germinate_rate`` and ``fossilize_rate``: along an episode of the log, the probability of choosing the operation
    at least once, averaged over the episodes in which it was ever legal (0 if there is none). ``commit_rate`` is their
    product: P(germinates at least once) x P(fossilises at least once), on logged states.
    ``advance_mean`` is per legal step. ``germinate_legal`` and ``fossilize_legal`` are the shares of episodes in which
    the operation was ever legal, ``advance_legal`` is the number of legal steps per episode.
    """
    logits = output.op.masked_fill(~batch.masks.op, -torch.inf)
    probabilities = logits.softmax(dim=1)
    germinate, germinate_legal = _at_least_once(probabilities, batch, Op.GERMINATE)
    fossilize, fossilize_legal = _at_least_once(probabilities, batch, Op.FOSSILIZE)
    advance = OP_INDEX[Op.ADVANCE]
    legal = batch.masks.op[:, advance]
    return {
        "commit_rate": germinate * fossilize,
        "germinate_rate": germinate,
        "germinate_legal": germinate_legal,
        "fossilize_rate": fossilize,
        "fossilize_legal": fossilize_legal,
        "advance_mean": (probabilities[:, advance] * legal).sum() / legal.sum().clamp(min=1),
        "advance_legal": legal.sum() / batch.valid.shape[1],
    }


def _at_least_once(probabilities: Tensor, batch: SequenceBatch, op: Op) -> tuple[Tensor, Tensor]:
    """Return P(op at least once) averaged over the episodes in which ``op`` was ever legal, and their share."""
    column = OP_INDEX[op]
    never = batch.to_time_major(torch.log1p(-probabilities[:, column].clamp(max=1.0 - 1e-6))).sum(0).exp()
    ever_legal = batch.to_time_major(batch.masks.op[:, column].to(never.dtype)).amax(0)
    return (1.0 - never).sum() / ever_legal.sum().clamp(min=1.0), ever_legal.mean()


def pooled_rates(seen: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Return ``commit_metrics`` of several updates, whose batches are nearly of one size, together.

    Empty if the updates have none of them, as those of an objective of another package may.
    """
    if not all(name in metrics for metrics in seen for name in (*RATE_WEIGHTS, *RATE_WEIGHTS.values())):
        return {}
    pooled = {}
    for rate, weight in RATE_WEIGHTS.items():
        rates, weights = (np.array([metrics[name] for metrics in seen]) for name in (rate, weight))
        total = float(weights.sum())
        pooled[rate] = float((rates * weights).sum()) / total if total else 0.0
        pooled[weight] = total / len(seen)
    return {"commit_rate": pooled["germinate_rate"] * pooled["fossilize_rate"], **pooled}


def check_commit_rate(seen: Sequence[Mapping[str, float]], least: float) -> None:
    """Raise TrainingError if the commit rate of all updates ``seen`` is below ``least``.

    A pass without a state in which fossilising is legal is not checked; the gate checks the policy later.
    """
    if not any(metrics["fossilize_legal"] for metrics in seen):
        return
    rate = pooled_rates(seen).get("commit_rate", 0.0)
    if rate < least:
        raise TrainingError(
            "the commit rate, P(germinates at least once) x P(fossilises at least once) on logged states, "
            f"is {rate:.4f}, less than train.min_commit_rate {least}: the policy has collapsed to never growing. "
            "Collect new episodes or branches; for V-trace, lower train.vtrace_passes or raise train.entropy_bonus; "
            "if the log begins its seeds before the first epoch, set train.network.first_epoch_penalty to 0"
        )


@torch.no_grad()
def logged_commit_rates(network: PolicyNetwork, store: GraphDataset, batch_sequences: int) -> dict[str, float]:
    """Return ``commit_metrics`` of evenly spaced episodes of the data set."""
    every = np.arange(len(store))
    return measure_on_log(store, every, batch_sequences, lambda batch: commit_metrics(network.act(batch.steps), batch))


def measure_on_log(
    store: GraphDataset,
    rows: NDArray[np.int64],
    batch_sequences: int,
    metrics_of: Callable[[SequenceBatch], Mapping[str, Tensor]],
) -> dict[str, float]:
    """Return metrics of evenly spaced episodes among ``rows``, pooled over batches as those of an update's parts."""
    places = np.linspace(0, len(rows) - 1, min(len(rows), _MOST_EPISODES)).round().astype(np.int64)
    chosen, total = rows[np.unique(places)], dict[str, Tensor]()
    for start in range(0, len(chosen), batch_sequences):
        part = chosen[start : start + batch_sequences]
        add_up(total, metrics_of(store.batch(part)), len(part) / len(chosen))
    return {name: float(value) for name, value in total.items()}
