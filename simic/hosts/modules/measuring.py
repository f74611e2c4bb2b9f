"""Evaluation of one host of a user's own, by the definitions of the stacked hosts.

Shapes: R rows (the host, then itself without one seed each), n samples, L layers, S slots, C classes, D features.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from simic.hosts.modules.living import LivingHost
from simic.hosts.modules.passes import Draw, Grown, drawn_for, forward, undisturbed
from simic.hosts.protocols import Measurement, Part
from simic.hosts.stacked.evaluation import measure_logits, ratio_of, spread_of
from simic.hosts.stacked.growth import Paths

__all__ = ["join", "measure"]

_CHUNK = 256
"""Samples of a pass, so that large sets fit into memory."""


def measure(host: LivingHost, seeds: Mapping[int, Grown], part: Part, *, leave_one_out: bool) -> Measurement:
    """Of N = 1 host with ``seeds`` by slot, those it feels; the host is not changed."""
    labels, slots = host.samples(part).labels.unsqueeze(0), len(host.wiring.anatomy.sites)
    without = sorted(seeds) if leave_one_out else []
    meter = _Meter(len(host.wiring.outlets))
    with undisturbed(host.module, training=False), torch.no_grad():
        rows = [_logits(host, seeds, part, meter)]
        for slot in without:
            rows.append(_logits(host, {other: seed for other, seed in seeds.items() if other != slot}, part, None))
    starts = tuple(torch.zeros(int(slot in without), dtype=torch.int64) for slot in range(slots))
    counts = tuple(np.cumsum([1, *map(len, starts)]).tolist())
    paths = Paths(torch.zeros(len(rows), dtype=torch.int64), counts, starts)
    valid = labels.shape[1]
    risk = np.full((1, slots), np.nan)
    for slot, layer in host.wiring.anatomy.monitors:
        if layer in meter.changes:
            changes, states = (torch.cat(pieces, dim=1) for pieces in meter.changes[layer])
            risk[:, slot] = ratio_of(changes, states, valid)
    spread = np.stack([spread_of(torch.cat(sizes, dim=1), valid) for sizes in meter.sizes], axis=1)
    logits = torch.stack(rows).transpose(1, 2)
    return measure_logits(logits, paths.per_row(labels, slots), valid, paths, spread, risk)


def join(measured: Sequence[Measurement]) -> Measurement:
    """Of N hosts, from one each."""
    return Measurement(*(np.concatenate(columns) for columns in zip(*measured, strict=True)))


class _Meter:
    """Norms per sample, all that spread and risk need, [1, n, 1] in pieces."""

    def __init__(self, layers: int) -> None:
        self.sizes: list[list[Tensor]] = [[] for _ in range(layers)]
        """Per layer: |output|."""
        self.changes: dict[int, tuple[list[Tensor], list[Tensor]]] = {}
        """By layer: what its seed changes, and what there was to be changed."""

    def watch(self, layer: int, h: Tensor, change: Tensor | None) -> None:
        """See ``passes.Watch``."""
        size = _sizes(h)
        self.sizes[layer].append(size)
        if change is not None:
            changes, states = self.changes.setdefault(layer, ([], []))
            changes.append(_sizes(change))
            states.append(size)


def _sizes(x: Tensor) -> Tensor:
    """[1, B, *space, D] -> [1, B, 1]"""
    sizes: Tensor = torch.linalg.vector_norm(x.flatten(2), dim=2, keepdim=True)
    return sizes


def _logits(host: LivingHost, seeds: Mapping[int, Grown], part: Part, meter: _Meter | None) -> Tensor:
    """[n, C]; inputs are copied, so that a module that works in place cannot spoil them."""
    watch = None if meter is None else meter.watch
    with drawn_for(host.key, Draw.EVALUATION, part):
        pieces = [
            forward(host.module, host.wiring.outlets, piece.clone(), seeds, watch)
            for piece in torch.split(host.samples(part).inputs, _CHUNK)
        ]
    return torch.cat(pieces)
