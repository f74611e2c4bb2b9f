"""The parts of an update's rows that are processed one after the other, so that a large batch needs little memory."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor

__all__ = ["COUNT_SUFFIX", "RATE_WEIGHTS", "Part", "add_up", "split_rows"]

COUNT_SUFFIX = "_count"
"""A metric with such a name is a sum over the parts of an update; others are their mean."""


LARGEST = frozenset({"max_log_ratio"})
"""Metrics of which the largest of all parts counts."""
SQUARE = "mean_square_weight"
"""Metric from which, with ``mean_weight``, the effective sample size of several parts follows."""
RATE_WEIGHTS = {
    "germinate_rate": "germinate_legal", "fossilize_rate": "fossilize_legal", "advance_mean": "advance_legal",
}  # fmt: skip
"""The metric that says of how many episodes, or steps, a rate of ``commit_rates`` is the mean."""


class Part(NamedTuple):
    """Consecutive rows of an update."""

    rows: slice
    share: float
    """Of all rows of the update."""


def split_rows(rows: int, most: int) -> list[Part]:
    """Return parts of at most ``most`` rows that differ in length by at most one."""
    count = max(1, -(-rows // most))
    ends = [number * rows // count for number in range(count + 1)]
    return [Part(slice(first, last), (last - first) / rows) for first, last in pairwise(ends)]


def add_up(total: dict[str, Tensor], metrics: Mapping[str, Tensor], share: float) -> None:
    """Add the metrics of a part, without gradient, to those of the parts before it.

    The effective sample size is that of the weights of all parts so far; the mean of the parts' own would hide a single
    large weight. A rate of ``commit_rates`` is that of all episodes, or steps, of the parts so far.
    """
    rates = {name: _pooled(total, metrics, name, share) for name in RATE_WEIGHTS if name in metrics}
    for name, value in metrics.items():
        if name in total and name in LARGEST:
            total[name] = torch.maximum(total[name], value)
            continue
        own = value if share == 1.0 or name in LARGEST or name.endswith(COUNT_SUFFIX) else value * share
        total[name] = own if name not in total else total[name] + own
    if share < 1.0 and SQUARE in total:
        total["effective_sample_share"] = total["mean_weight"].square() / total[SQUARE]
    if share < 1.0 and rates:
        total |= rates
        total["commit_rate"] = rates["germinate_rate"] * rates["fossilize_rate"]


def _pooled(total: Mapping[str, Tensor], part: Mapping[str, Tensor], rate: str, share: float) -> Tensor:
    """Return a rate [] of the parts in ``total`` and one more, weighted by what each rests on; 0 if that is nothing."""
    own = part[RATE_WEIGHTS[rate]] * share
    before = total.get(RATE_WEIGHTS[rate], torch.zeros_like(own))
    both = before + own
    mean = (total.get(rate, torch.zeros_like(own)) * before + part[rate] * own) / both.clamp(min=1e-12)
    return torch.where(both > 0, mean, 0.0)
