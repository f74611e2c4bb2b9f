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
from simic.hosts.growth import Group, Growth, Paths
from simic.hosts.weights import HostWeights

__all__ = ["EpochBatches", "TrainingRecord", "probe_seeds", "train_epoch"]


class EpochBatches(NamedTuple):
    """What an epoch shows."""

    inputs: Tensor
    """[T, N, B, 34]"""
    targets: Tensor
    """[T, N, B, 10], one-hot."""
    gains: tuple[Tensor | None, ...]
    """Per block: factor of its output, [T, N, B, 1], or None where no host has one."""
    floor: Tensor
    """[N, 1, 1]: what the stem's output is cut off at; 0 is a ReLU, minus infinity none."""
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

    is_open: Tensor
    """Where the stem's output was not cut off."""
    states: tuple[Tensor, ...]
    """Per slot, behind it: [R, B, D]."""
    hidden: tuple[Tensor, ...]
    """Per block: [R, B, M]."""
    grown: list[list[tuple[Tensor, Tensor]]]
    """Per slot and group: (h, alpha delta) with graph."""
    logits: Tensor
    """[R, B, 10]"""


def train_epoch(weights: HostWeights, momentum: HostWeights, growth: Growth, batches: EpochBatches) -> TrainingRecord:
    """Train in place."""
    hosts = len(weights.stem)
    run = _Run(weights, momentum, growth, hosts)
    logits = torch.empty(STEPS, *batches.targets.shape[1:])
    with torch.no_grad():
        for step in range(STEPS):
            rows = _select(weights, growth.paths)
            tape = _forward(rows, growth, batches, step)
            logits[step] = tape.logits[:hosts]
            run.backward(rows, tape, batches, step)
            run.descend()
        return run.record(logits, batches.targets)


def probe_seeds(weights: HostWeights, growth: Growth, batches: EpochBatches) -> NDArray[np.float64]:
    """Gradient norm of every incubating seed on the first batch, [N, S]; NaN elsewhere. Nothing is changed."""
    run = _Run(weights, weights, growth, len(weights.stem))
    with torch.no_grad():
        rows = _select(weights, growth.paths)
        run.backward(rows, _forward(rows, growth, batches, 0), batches, 0)
    return run.seed_means(1)[0]


def _select(weights: HostWeights, paths: Paths) -> HostWeights:
    """Each row's weights."""
    if not paths.has_branches:
        return weights
    per_slot = [paths.hosts[:count] for count in paths.counts[1:]]
    return weights._replace(
        down=tuple(w.index_select(0, rows) for w, rows in zip(weights.down, per_slot, strict=False)),
        up=tuple(w.index_select(0, rows) for w, rows in zip(weights.up, per_slot, strict=False)),
        head=weights.head.index_select(0, per_slot[-1]),
    )


def _forward(weights: HostWeights, growth: Growth, batches: EpochBatches, step: int) -> _Tape:
    raw = torch.bmm(batches.inputs[step], weights.stem)
    is_open = raw > batches.floor
    x = torch.maximum(raw, batches.floor)
    states, hidden, grown = [], [], []
    for slot in range(SLOTS):
        if slot:
            unit = torch.bmm(x, weights.down[slot - 1]).relu_()
            x = torch.baddbmm(x, unit, weights.up[slot - 1])
            hidden.append(unit)
            gain = batches.gains[slot - 1]
            if gain is not None:
                x.mul_(_per_row(gain[step], growth.paths, slot))
        if growth.paths.counts[slot + 1] > growth.paths.counts[slot]:
            x = torch.cat([x, x.index_select(0, growth.paths.starts[slot])])
        noise = [batches.noise.get((slot, index)) for index in range(len(growth.groups[slot]))]
        grown.append(
            [
                group.apply(x, None if drawn is None else drawn[step], in_training=True)
                for group, drawn in zip(growth.groups[slot], noise, strict=True)
            ]
        )
        states.append(x)
    return _Tape(is_open, tuple(states), tuple(hidden), grown, torch.bmm(x, weights.head))


def _per_row(values: Tensor, paths: Paths, slot: int) -> Tensor:
    """Host values [N, ...] for the rows in front of a slot."""
    if paths.counts[slot] == paths.counts[0]:
        return values
    return values.index_select(0, paths.hosts[: paths.counts[slot]])


class _Run:
    """Buffers and sums of one epoch."""

    def __init__(self, weights: HostWeights, momentum: HostWeights, growth: Growth, hosts: int) -> None:
        self.weights, self.momentum, self.growth, self.hosts = weights, momentum, growth, hosts
        self.gradient = HostWeights.zeros(hosts)
        self.seed_gradient = torch.zeros_like(growth.parameters)
        self.groups = [group for slot in growth.groups for group in slot]
        cuts = torch.split(self.seed_gradient, [group.parameters.numel() for group in self.groups])
        self.seed_cuts = {id(g): cut.view_as(g.parameters) for g, cut in zip(self.groups, cuts, strict=True)}
        self.is_felt = np.zeros((hosts, SLOTS), dtype=bool)
        for group in self.groups:
            group.parameters.requires_grad_(group.blueprint.parameters > 0)
            self.is_felt[group.hosts.numpy(), group.slot] = group.is_felt
        self.seed_norms = np.zeros((hosts, SLOTS))
        self.layer_sums = np.zeros((hosts, LAYERS))
        self.seed_sums = np.zeros((hosts, SLOTS))
        self.seed_good = np.zeros((hosts, SLOTS))

    def backward(self, weights: HostWeights, tape: _Tape, batches: EpochBatches, step: int) -> None:
        """Fill the gradients; ``weights`` are those of the rows."""
        growth, hosts, mine = self.growth, self.hosts, self.gradient
        g = tape.logits.softmax(dim=2)
        g.sub_(_per_row(batches.targets[step], growth.paths, SLOTS)).mul_(1.0 / BATCH)
        torch.bmm(tape.states[-1][:hosts].transpose(1, 2), g[:hosts], out=mine.head)
        g = torch.bmm(g, weights.head.transpose(1, 2))
        for slot in reversed(range(SLOTS)):
            for group, graph in zip(growth.groups[slot], tape.grown[slot], strict=True):
                self._into_seed(group, graph, g)
            g = g[: growth.paths.counts[slot]]
            if not slot:
                break
            block = slot - 1
            gain = batches.gains[block]
            if gain is not None:
                g = g * _per_row(gain[step], growth.paths, slot)
            unit, below = tape.hidden[block], tape.states[block]
            torch.bmm(unit[:hosts].transpose(1, 2), g[:hosts], out=mine.up[block])
            inner = torch.bmm(g, weights.up[block].transpose(1, 2))
            inner = torch.ops.aten.threshold_backward(inner, unit, 0.0)
            torch.bmm(below[:hosts].transpose(1, 2), inner[:hosts], out=mine.down[block])
            g = torch.baddbmm(g, inner, weights.down[block].transpose(1, 2))
        g = torch.where(tape.is_open, g, 0.0)
        torch.bmm(batches.inputs[step].transpose(1, 2), g, out=mine.stem)

    def _into_seed(self, group: Group, graph: tuple[Tensor, Tensor], g: Tensor) -> None:
        """Add what flows through the seeds to ``g`` [R, B, D], and keep their own gradients, clipped."""
        h, change = graph
        above = g.index_select(0, group.target)
        wanted = (h, group.parameters) if group.parameters.requires_grad else (h,)
        below, *own = torch.autograd.grad(change, wanted, above)
        g.index_copy_(0, group.target, above + below)
        if own:
            self.seed_cuts[id(group)].copy_(own[0])
            norm = torch.linalg.vector_norm(own[0], dim=1).numpy().astype(np.float64)
            rows = group.hosts.numpy()
            self.seed_norms[rows, group.slot] = norm
            self.seed_sums[rows, group.slot] += norm
            self.seed_good[rows, group.slot] += np.isfinite(norm) & (norm > 0)

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
        shared = _shrinkage(np.sqrt(total))
        for part in self.gradient.segments:
            part.mul_(_column(shared).unsqueeze(2))
        own = np.where(self.is_felt, shared[:, None], _shrinkage(self.seed_norms))
        for group in self.groups:
            self.seed_cuts[id(group)].mul_(_column(own[group.hosts.numpy(), group.slot]))
        for gradient, velocity, value in (
            (self.gradient.flat, self.momentum.flat, self.weights.flat),
            (self.seed_gradient, self.growth.momentum, self.growth.parameters),
        ):
            velocity.mul_(MOMENTUM).add_(gradient)
            value.sub_(velocity * LEARNING_RATE)
        blocks = [np.sqrt(squares[1 + 2 * block] + squares[2 + 2 * block]) for block in range(BLOCKS)]
        for layer, norm in enumerate((norms[0], *blocks, norms[-1])):
            self.layer_sums[:, layer] += norm

    def record(self, logits: Tensor, targets: Tensor) -> TrainingRecord:
        """Means of the epoch from its logits [T, N, B, 10]."""
        loss = -(logits.log_softmax(dim=3) * targets).sum(dim=3)
        hits = logits.argmax(dim=3) == targets.argmax(dim=3)
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
        has_seed = np.zeros((self.hosts, SLOTS), dtype=bool)
        for group in self.groups:
            has_seed[group.hosts.numpy(), group.slot] = group.blueprint.parameters > 0
            group.parameters.requires_grad_(False)
        return np.where(has_seed, self.seed_sums / steps, np.nan), np.where(has_seed, self.seed_good / steps, np.nan)


def _mean_per_host(values: Tensor) -> NDArray[np.float64]:
    """[T, N, B] -> [N], each host summed on its own."""
    rows = np.ascontiguousarray(values.numpy().swapaxes(0, 1)).reshape(values.shape[1], -1)
    means: NDArray[np.float64] = rows.mean(axis=1, dtype=np.float64)
    return means


def _shrinkage(norm: NDArray[np.float64]) -> NDArray[np.float64]:
    """Factor that brings a norm down to the clip norm; NaN stays NaN."""
    return CLIP_NORM / np.maximum(norm, CLIP_NORM)


def _column(factor: NDArray[np.float64]) -> Tensor:
    return torch.from_numpy(factor.astype(np.float32))[:, None]
