"""One epoch of all hosts at once: a hand-written pass through the trunk, autograd only inside the seeds.

The trunk's backward pass is written out so that every product is one ``bmm`` over the stacked hosts. Seeds join
through ``Group``; extra rows (seeds learning in isolation) receive gradients like any other row but pass none to
weights or to the host they branched from. Hosts meet only in ``bmm`` and elementwise operations, so no host's
bits depend on its neighbours. Optimiser: SGD with momentum; a host is clipped together with the seeds it feels,
a seed that learns in isolation on its own.
Shapes: T steps, N hosts, R rows, B batch, D width, S slots, n seeds of a group.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from simic.hosts.anatomy import BATCH, BLOCKS, CLIP_NORM, LAYERS, LEARNING_RATE, MOMENTUM, SLOTS, STEPS
from simic.hosts.growth import Bed, Growth
from simic.hosts.weights import HostWeights

__all__ = ["EpochBatches", "TrainingRecord", "probe_seeds", "train_epoch"]


class EpochBatches(NamedTuple):
    """What an epoch shows."""

    inputs: Tensor
    """[T, N, B, 34]"""
    targets: Tensor
    """[T, N, 10, B], one-hot; classes in front, because reductions over a short last dimension are slow."""
    gains: tuple[Tensor | None, ...]
    """Per block: factor of its output, [T, N, B, 1], or None where no host has one."""
    floor: Tensor
    """[N, 1, 1]: what the stem's output is cut off at; 0 is a ReLU, minus infinity none."""
    passing: Tensor
    """[N, 1, 1]: 1 where the stem is linear, else 0."""
    noise: dict[tuple[int, int], Tensor]
    """(slot, group) -> [T, n, B, D] uniform, for blueprints that want it."""


class TrainingRecord(NamedTuple):
    """What an epoch showed; means are over its steps."""

    loss: NDArray[np.float64]
    """[N]"""
    accuracy: NDArray[np.float64]
    """[N]"""
    layer_gradient: NDArray[np.float64]
    """[N, layers], before clipping."""
    seed_gradient: NDArray[np.float64]
    """[N, S], before clipping; NaN where no parameters trained."""
    seed_health: NDArray[np.float64]
    """[N, S]: share of steps whose gradient was finite and not zero; NaN likewise."""


class _Tape(NamedTuple):
    """Activations of one step."""

    stem: Tensor
    """[N, B, D]: positive where the stem's output was not cut off."""
    states: tuple[Tensor, ...]
    """Per slot, behind it: [R, B, D]."""
    hidden: tuple[Tensor, ...]
    """Per block: [R, B, M]."""
    grown: tuple[tuple[Tensor, Tensor] | None, ...]
    """Per slot: (h, alpha delta) of its bed, with graph."""
    logits: Tensor
    """[R, 10, B]"""


def train_epoch(weights: HostWeights, momentum: HostWeights, growth: Growth, batches: EpochBatches) -> TrainingRecord:
    """Train in place; ``momentum`` is scaled by the learning rate."""
    run = _Run(weights, momentum, growth)
    logits = torch.empty_like(batches.targets)
    with torch.no_grad():
        for step in range(STEPS):
            rows = _select(weights, growth)
            tape = _forward(rows, growth, batches, step)
            logits[step] = tape.logits[: run.hosts]
            run.backward(rows, tape, batches, step)
            run.descend()
        return run.record(logits, batches.targets)


def probe_seeds(weights: HostWeights, growth: Growth, batches: EpochBatches) -> NDArray[np.float64]:
    """Gradient norm of every incubating seed on the first batch, [N, S]; NaN elsewhere. Nothing is changed."""
    run = _Run(weights, weights, growth)
    with torch.no_grad():
        rows = _select(weights, growth)
        run.backward(rows, _forward(rows, growth, batches, 0), batches, 0)
    return run.seed_means(1)[0]


def _select(weights: HostWeights, growth: Growth) -> HostWeights:
    """Each row's weights."""
    per_row = growth.paths.per_row
    return weights._replace(
        down=tuple(per_row(part, slot) for slot, part in enumerate(weights.down, start=1)),
        up=tuple(per_row(part, slot) for slot, part in enumerate(weights.up, start=1)),
        head=per_row(weights.head, SLOTS),
    )


def _forward(weights: HostWeights, growth: Growth, batches: EpochBatches, step: int) -> _Tape:
    x = torch.maximum(torch.bmm(batches.inputs[step], weights.stem), batches.floor)
    stem = torch.maximum(x, batches.passing)
    states, hidden, grown = [], [], []
    for slot, bed in enumerate(growth.beds):
        if slot:
            unit = torch.bmm(x, weights.down[slot - 1]).relu_()
            x = torch.baddbmm(x, unit, weights.up[slot - 1])
            hidden.append(unit)
            gain = batches.gains[slot - 1]
            if gain is not None:
                x.mul_(growth.paths.per_row(gain[step], slot))
        if len(growth.paths.starts[slot]):
            x = torch.cat([x, x.index_select(0, growth.paths.starts[slot])])
        grown.append(None if bed is None else bed.apply(x, _noise(batches, slot, bed, step), in_training=True))
        states.append(x)
    return _Tape(stem, tuple(states), tuple(hidden), tuple(grown), torch.bmm(weights.head, x.transpose(1, 2)))


def _noise(batches: EpochBatches, slot: int, bed: Bed, step: int) -> list[Tensor | None]:
    drawn = [batches.noise.get((slot, index)) for index in range(len(bed.groups))]
    return [None if one is None else one[step] for one in drawn]


class _Run:
    """Buffers and sums of one epoch. ``order`` says which (host, slot) each packed seed with parameters is."""

    def __init__(self, weights: HostWeights, momentum: HostWeights, growth: Growth) -> None:
        self.weights, self.momentum, self.growth = weights, momentum, growth
        self.hosts = len(weights.stem)
        self.gradient = HostWeights.zeros(self.hosts)
        self.seed_gradient = torch.zeros_like(growth.parameters)
        groups = [(slot, group) for slot, group in growth.groups() if group.blueprint.parameters]
        for _, group in groups:
            group.parameters.requires_grad_(True)
        self.order = (
            np.concatenate([[], *(group.hosts for _, group in groups)]).astype(np.int64),
            np.repeat([slot for slot, _ in groups], [len(group.hosts) for _, group in groups]).astype(np.int64),
        )
        widths = np.repeat([g.blueprint.parameters for _, g in groups], [len(g.hosts) for _, g in groups])
        self.widths = widths.astype(np.int64)
        self.offsets = np.cumsum(self.widths) - self.widths
        self.is_felt = np.zeros((self.hosts, SLOTS), dtype=bool)
        self.is_felt[self.order] = np.concatenate([[], *(group.is_felt for _, group in groups)])
        self.seed_norms = np.zeros((self.hosts, SLOTS))
        self.layer_sums = np.zeros((self.hosts, LAYERS))
        self.seed_sums = np.zeros((self.hosts, SLOTS))
        self.seed_good = np.zeros((self.hosts, SLOTS))

    def backward(self, weights: HostWeights, tape: _Tape, batches: EpochBatches, step: int) -> None:
        """Fill the gradients; ``weights`` are those of the rows."""
        paths, hosts, mine = self.growth.paths, self.hosts, self.gradient
        g = tape.logits.softmax(dim=1)
        g.sub_(paths.per_row(batches.targets[step], SLOTS)).mul_(1.0 / BATCH)
        torch.bmm(g[:hosts], tape.states[-1][:hosts], out=mine.head)
        g = torch.bmm(g.transpose(1, 2), weights.head)
        own: list[Tensor] = []
        for slot in reversed(range(SLOTS)):
            own = _into_seeds(self.growth.beds[slot], tape.grown[slot], g) + own
            g = g[: paths.counts[slot]]
            if not slot:
                break
            block = slot - 1
            gain = batches.gains[block]
            if gain is not None:
                g = g * paths.per_row(gain[step], slot)
            unit, below = tape.hidden[block], tape.states[block]
            torch.bmm(unit[:hosts].transpose(1, 2), g[:hosts], out=mine.up[block])
            inner = torch.bmm(g, weights.up[block].transpose(1, 2))
            inner = torch.ops.aten.threshold_backward(inner, unit, 0.0)
            torch.bmm(below[:hosts].transpose(1, 2), inner[:hosts], out=mine.down[block])
            g = torch.baddbmm(g, inner, weights.down[block].transpose(1, 2))
        g = torch.ops.aten.threshold_backward(g, tape.stem, 0.0)
        torch.bmm(batches.inputs[step].transpose(1, 2), g, out=mine.stem)
        if own:
            torch.cat([one.view(-1) for one in own], out=self.seed_gradient)
            self._count_seeds()

    def _count_seeds(self) -> None:
        squares = np.square(self.seed_gradient.numpy(), dtype=np.float64)
        norms = np.sqrt(np.add.reduceat(squares, self.offsets))
        self.seed_norms[self.order] = norms
        self.seed_sums[self.order] += norms
        self.seed_good[self.order] += np.isfinite(norms) & (norms > 0)

    def descend(self) -> None:
        """Clip, then SGD with momentum; products and sums stay apart, as fused ones round differently."""
        norms = [
            torch.linalg.vector_norm(part.view(self.hosts, -1), dim=1).numpy().astype(np.float64)
            for part in self.gradient.segments
        ]
        squares = [norm * norm for norm in norms]
        total = sum(squares[1:], squares[0])
        for slot in range(SLOTS):
            total = total + np.where(self.is_felt[:, slot], self.seed_norms[:, slot] ** 2, 0.0)
        shared = _pace(np.sqrt(total))
        factor = torch.from_numpy(shared.astype(np.float32))[:, None, None]
        for part in self.gradient.segments:
            part.mul_(factor)
        self.momentum.flat.mul_(MOMENTUM).add_(self.gradient.flat)
        self.weights.flat.sub_(self.momentum.flat)
        if len(self.offsets):
            own = np.where(self.is_felt, shared[:, None], _pace(self.seed_norms))[self.order]
            self.seed_gradient.mul_(torch.from_numpy(np.repeat(own.astype(np.float32), self.widths)))
            self.growth.momentum.mul_(MOMENTUM).add_(self.seed_gradient)
            self.growth.parameters.sub_(self.growth.momentum)
        blocks = [np.sqrt(squares[1 + 2 * block] + squares[2 + 2 * block]) for block in range(BLOCKS)]
        for layer, norm in enumerate((norms[0], *blocks, norms[-1])):
            self.layer_sums[:, layer] += norm

    def record(self, logits: Tensor, targets: Tensor) -> TrainingRecord:
        """Means of the epoch from its logits [T, N, 10, B]."""
        loss = -(logits.log_softmax(dim=2) * targets).sum(dim=2)
        wanted = (logits * targets).sum(dim=2)
        hits = wanted > logits.masked_fill(targets > 0, -torch.inf).amax(dim=2)
        seed_gradient, seed_health = self.seed_means(STEPS)
        return TrainingRecord(
            loss=_mean_per_host(loss),
            accuracy=_mean_per_host(hits),
            layer_gradient=self.layer_sums / STEPS,
            seed_gradient=seed_gradient,
            seed_health=seed_health,
        )

    def seed_means(self, steps: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Mean gradient norm and health per seed, [N, S]; ends the use of the leaves."""
        for _, group in self.growth.groups():
            group.parameters.requires_grad_(False)
        gradient, health = np.full((2, self.hosts, SLOTS), np.nan)
        gradient[self.order] = self.seed_sums[self.order] / steps
        health[self.order] = self.seed_good[self.order] / steps
        return gradient, health


def _into_seeds(bed: Bed | None, graph: tuple[Tensor, Tensor] | None, g: Tensor) -> list[Tensor]:
    """Add what flows through a slot's seeds to ``g`` [R, B, D]; returns the seeds' own gradients, group by group."""
    if bed is None or graph is None:
        return []
    h, change = graph
    above = g.index_select(0, bed.target)
    leaves = [group.parameters for group in bed.groups if group.parameters.requires_grad]
    with torch.enable_grad():
        product = (change * above).sum()
    below, *own = torch.autograd.grad(product, (h, *leaves))
    g.index_copy_(0, bed.target, above + below)
    return own


def _mean_per_host(values: Tensor) -> NDArray[np.float64]:
    """[T, N, B] -> [N], each host summed on its own."""
    rows = np.ascontiguousarray(values.numpy().swapaxes(0, 1)).reshape(values.shape[1], -1)
    means: NDArray[np.float64] = rows.mean(axis=1, dtype=np.float64)
    return means


def _pace(norm: NDArray[np.float64]) -> NDArray[np.float64]:
    """Learning rate, smaller where a norm must be brought down to the clip norm; NaN stays NaN."""
    return LEARNING_RATE * CLIP_NORM / np.maximum(norm, CLIP_NORM)
