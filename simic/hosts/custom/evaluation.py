"""Evaluation of one custom host, by the definitions of the batched hosts.

Shapes: R rows (the host, then itself without one seed each), n samples, L layers, S slots, C classes, D features.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from simic.hosts.batched.evaluation import (
    LayerMeasurements,
    dimension_of,
    measure_logits,
    ratio_of,
    rows_of,
    spread_of,
)
from simic.hosts.batched.seeds import RowLayout
from simic.hosts.custom.forward import ActiveSeed, RngStream, forward, preserve_state, seeded_rng
from simic.hosts.custom.host import CustomHost
from simic.hosts.custom.tasks import Task
from simic.hosts.interfaces import DataSplit, Measurement

__all__ = ["join", "measure"]


def measure(host: CustomHost, seeds: Mapping[int, ActiveSeed], part: DataSplit, *, leave_one_out: bool) -> Measurement:
    """Measure one host with its active ``seeds`` by slot; the host is not changed."""
    labels, slots = host.samples(part).labels.cpu(), len(host.layout.topology.sites)
    without = sorted(seeds) if leave_one_out else []
    recorder = _Recorder(len(host.layout.hooks), len(labels))
    with preserve_state(host.module, training=False), torch.no_grad():
        rows = [_logits(host, seeds, part, recorder)]
        for slot in without:
            rows.append(_logits(host, {other: seed for other, seed in seeds.items() if other != slot}, part, None))
    valid = len(labels)
    risk = np.full((1, slots), np.nan)
    for slot, pieces in recorder.changes.items():
        changes, states = (torch.cat(sizes, dim=1) for sizes in pieces)
        risk[:, slot] = ratio_of(changes, states, changes.shape[1])
    spread = np.stack([spread_of(torch.cat(sizes, dim=1), valid) for sizes in recorder.sizes], axis=1)
    dimension = np.stack([dimension_of(torch.cat(pieces, dim=1)).numpy() for pieces in recorder.rows], axis=1)
    layers = LayerMeasurements(spread, dimension, risk)
    if labels.is_floating_point() or labels.dim() > 1:
        return _measure_scores(host.task, rows, labels, without, layers)
    starts = tuple(torch.zeros(int(slot in without), dtype=torch.int64, device="cpu") for slot in range(slots))
    counts = tuple(np.cumsum([1, *map(len, starts)]).tolist())
    layout = RowLayout(torch.zeros(len(rows), dtype=torch.int64, device="cpu"), counts, starts)
    logits = torch.stack(rows).transpose(1, 2)
    return measure_logits(logits, layout.per_row(labels.unsqueeze(0), slots), valid, layout, layers)


def _measure_scores(
    task: Task,
    rows: Sequence[Tensor],
    labels: Tensor,
    without: Sequence[int],
    layers: LayerMeasurements,
) -> Measurement:
    """Score the rows' outputs [n, ...]; rows behind the first lack one seed each, in the order of ``without``."""
    scores = [task.score(row, labels) for row in rows]
    (likelihood, hits), *others = [(one.numpy(), two.numpy()) for one, two in scores]
    accuracy_without, error = np.full((2, *layers.risk.shape), np.nan)
    for slot, (_, less) in zip(without, others, strict=True):
        accuracy_without[0, slot] = less.mean()
        error[0, slot] = (hits - less).std() / np.sqrt(len(labels))
    return Measurement(
        loss=-likelihood.mean(keepdims=True),
        accuracy=hits.mean(keepdims=True),
        accuracy_without=accuracy_without,
        error_without=error,
        **layers._asdict(),
        largest_share=np.array([task.largest_share(rows[0])]),
    )


def join(measured: Sequence[Measurement]) -> Measurement:
    """Concatenate measurements of one host each."""
    return Measurement(*(np.concatenate(columns) for columns in zip(*measured, strict=True)))


class _Recorder:
    """What spread, dimension and risk need of the outputs of layers, in pieces."""

    def __init__(self, layers: int, samples: int) -> None:
        self._samples = samples
        self.sizes: list[list[Tensor]] = [[] for _ in range(layers)]
        """Per layer: norms of its output, [1, n, 1]."""
        self.rows: list[list[Tensor]] = [[] for _ in range(layers)]
        """Per layer: the outputs from which its dimension is measured, [1, m, D]."""
        self.changes: dict[int, tuple[list[Tensor], list[Tensor]]] = {}
        """By slot: norms of its seed's change and of what it changes."""

    def output(self, layer: int, h: Tensor, /) -> None:
        first = sum(piece.shape[1] for piece in self.sizes[layer])
        self.sizes[layer].append(_sizes(h))
        # A copy, because a later layer may work in place on this output.
        self.rows[layer].append(rows_of(h, first, self._samples).to("cpu", torch.float32, copy=True))

    def change(self, slot: int, change: Tensor, h: Tensor, /) -> None:
        changes, states = self.changes.setdefault(slot, ([], []))
        changes.append(_sizes(change))
        states.append(_sizes(h))


def _sizes(x: Tensor) -> Tensor:
    """Return norms [1, B, 1] of [1, B, *space, D]."""
    sizes: Tensor = torch.linalg.vector_norm(x.flatten(2), dim=2, keepdim=True).cpu()
    return sizes


def _logits(host: CustomHost, seeds: Mapping[int, ActiveSeed], part: DataSplit, recorder: _Recorder | None) -> Tensor:
    """Return logits [n, C]; inputs are copied, because a module may change them in place."""
    inputs = host.samples(part).inputs
    with seeded_rng(host.key, RngStream.EVALUATION, part, device=inputs.device):
        pieces = [
            forward(host.module, host.layout.hooks, piece.clone(), seeds, recorder)
            for piece in _pieces(inputs, host.chunk)
        ]
    return torch.cat(pieces).cpu()


def _pieces(inputs: Tensor, size: int) -> tuple[Tensor, ...]:
    """Return the samples in pieces of one size and a rest; a single one is part of the piece before it.

    Many modules take the axis of the samples away from a single one, as ``squeeze`` does.
    """
    sizes, rest = [size] * (len(inputs) // size), len(inputs) % size
    if rest == 1 and sizes:
        sizes[-1] += 1
    elif rest:
        sizes.append(rest)
    return torch.split(inputs, sizes)
