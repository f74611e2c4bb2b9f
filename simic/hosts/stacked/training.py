"""One epoch of all hosts at once.

Extra rows (seeds learning in isolation) receive gradients like any other row but pass none to weights or to the host
they branched from. Hosts meet only in ``bmm`` and elementwise operations, so no host's bits depend on its neighbours.
Optimiser: SGD with momentum; a host is clipped together with the seeds it feels, a seed that learns in isolation on
its own.
Shapes: T steps, N hosts, L layers, B batch, D features, S slots, C classes, n seeds of a group.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from simic.hosts.protocols import TrainingRecord
from simic.hosts.stacked.anatomy import CLIP_NORM, LEARNING_RATE, MOMENTUM, STEPS
from simic.hosts.stacked.growth import Growth
from simic.hosts.stacked.trunk import StepBatch, Trunk, per_row
from simic.hosts.stacked.weights import HostWeights

__all__ = ["EpochBatches", "layer_norms", "part_squares", "probe_seeds", "score", "train_epoch"]


class EpochBatches(NamedTuple):
    """What an epoch shows."""

    inputs: Tensor
    """[T, N, B, ...]"""
    targets: Tensor
    """[T, N, C, B], one-hot."""
    gains: tuple[Tensor | None, ...]
    """Per block: factor of its output, [T, N, B, 1], or None where no host has one."""
    noise: dict[tuple[int, int], Tensor]
    """(slot, group) -> [T, n, B, D] uniform, for blueprints that want it."""

    def step(self, index: int, growth: Growth) -> StepBatch:
        """What one step shows."""
        beds = [0 if bed is None else len(bed.groups) for bed in growth.beds]
        drawn = ([self.noise.get((slot, group)) for group in range(groups)] for slot, groups in enumerate(beds))
        return StepBatch(
            self.inputs[index],
            self.targets[index],
            tuple(None if gain is None else gain[index] for gain in self.gains),
            tuple([None if one is None else one[index] for one in row] for row in drawn),
        )


def train_epoch(
    trunk: Trunk, weights: HostWeights, momentum: HostWeights, growth: Growth, batches: EpochBatches
) -> TrainingRecord:
    """Train in place; ``momentum`` is scaled by the learning rate."""
    run = _Run(trunk, weights, momentum, growth)
    logits = torch.empty_like(batches.targets)
    with torch.no_grad():
        for step in range(STEPS):
            logits[step] = run.backward(batches.step(step, growth))[: run.hosts]
            run.descend()
        return run.record(logits, batches.targets)


def probe_seeds(trunk: Trunk, weights: HostWeights, growth: Growth, batches: EpochBatches) -> NDArray[np.float64]:
    """Gradient norm of every incubating seed on the first batch, [N, S]; NaN elsewhere. Nothing is changed."""
    run = _Run(trunk, weights, weights, growth)
    with torch.no_grad():
        run.backward(batches.step(0, growth))
    return run.seed_means(1)[0]


class _Run:
    """Buffers and sums of one epoch. ``order`` says which (host, slot) each packed seed with parameters is."""

    def __init__(self, trunk: Trunk, weights: HostWeights, momentum: HostWeights, growth: Growth) -> None:
        self.trunk, self.weights, self.momentum, self.growth = trunk, weights, momentum, growth
        self.hosts, slots = len(weights.parts[0]), len(growth.beds)
        self.gradient = HostWeights.zeros(self.hosts, [part.shape for part in trunk.parts])
        self.seed_gradient = torch.zeros_like(growth.parameters)
        groups = [(slot, group) for slot, group in growth.groups() if group.parameters.shape[1]]
        for _, group in groups:
            group.parameters.requires_grad_(True)
        self.order = (
            np.concatenate([[], *(group.hosts for _, group in groups)]).astype(np.int64),
            np.repeat([slot for slot, _ in groups], [len(group.hosts) for _, group in groups]).astype(np.int64),
        )
        widths = np.repeat([g.parameters.shape[1] for _, g in groups], [len(g.hosts) for _, g in groups])
        self.widths = widths.astype(np.int64)
        self.offsets = np.cumsum(self.widths) - self.widths
        self.is_felt = np.zeros((self.hosts, slots), dtype=bool)
        self.is_felt[self.order] = np.concatenate([[], *(group.is_felt for _, group in groups)])
        self.seed_norms = np.zeros((self.hosts, slots))
        self.layer_sums = np.zeros((self.hosts, len(trunk.anatomy.kinds)))
        self.seed_sums = np.zeros((self.hosts, slots))
        self.seed_good = np.zeros((self.hosts, slots))

    def backward(self, batch: StepBatch) -> Tensor:
        """Fill the gradients; returns logits [R, C, B]."""
        rows = per_row(self.trunk, self.weights, self.growth.paths)
        logits, own = self.trunk.backpropagate(rows, self.growth, batch, self.gradient)
        if own:
            torch.cat([one.view(-1) for one in own], out=self.seed_gradient)
            self._count_seeds()
        return logits

    def _count_seeds(self) -> None:
        squares = np.square(self.seed_gradient.numpy(), dtype=np.float64)
        norms = np.sqrt(np.add.reduceat(squares, self.offsets))
        self.seed_norms[self.order] = norms
        self.seed_sums[self.order] += norms
        self.seed_good[self.order] += np.isfinite(norms) & (norms > 0)

    def descend(self) -> None:
        """Clip, then SGD with momentum; products and sums stay apart, as fused ones round differently."""
        squares = part_squares(self.gradient)
        total = sum(squares[1:], squares[0])
        for slot in range(self.is_felt.shape[1]):
            total = total + np.where(self.is_felt[:, slot], self.seed_norms[:, slot] ** 2, 0.0)
        shared = _pace(np.sqrt(total))
        factor = torch.from_numpy(shared.astype(np.float32))
        for part in self.gradient.parts:
            part.mul_(factor.view(-1, *[1] * (part.dim() - 1)))
        self.momentum.flat.mul_(MOMENTUM).add_(self.gradient.flat)
        self.weights.flat.sub_(self.momentum.flat)
        if len(self.offsets):
            own = np.where(self.is_felt, shared[:, None], _pace(self.seed_norms))[self.order]
            self.seed_gradient.mul_(torch.from_numpy(np.repeat(own.astype(np.float32), self.widths)))
            self.growth.momentum.mul_(MOMENTUM).add_(self.seed_gradient)
            self.growth.parameters.sub_(self.growth.momentum)
        self.layer_sums += layer_norms(self.trunk, squares)

    def record(self, logits: Tensor, targets: Tensor) -> TrainingRecord:
        """Means of the epoch from its logits [T, N, C, B]."""
        loss, hits = score(logits, targets, classes_dim=2)
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
        gradient, health = np.full((2, *self.is_felt.shape), np.nan)
        gradient[self.order] = self.seed_sums[self.order] / steps
        health[self.order] = self.seed_good[self.order] / steps
        return gradient, health


def score(logits: Tensor, targets: Tensor, classes_dim: int) -> tuple[Tensor, Tensor]:
    """Cross-entropy of every sample and whether it was a hit; a tie for the largest logit is a miss."""
    loss = -(logits.log_softmax(dim=classes_dim) * targets).sum(dim=classes_dim)
    wanted = (logits * targets).sum(dim=classes_dim)
    return loss, wanted > logits.masked_fill(targets > 0, -torch.inf).amax(dim=classes_dim)


def part_squares(weights: HostWeights) -> list[NDArray[np.float64]]:
    """Squared norm of each part, [N] each."""
    norms = (
        torch.linalg.vector_norm(part.flatten(1), dim=1).cpu().numpy().astype(np.float64) for part in weights.parts
    )
    return [norm * norm for norm in norms]


def layer_norms(trunk: Trunk, squares: list[NDArray[np.float64]]) -> NDArray[np.float64]:
    """Norm of each layer, [N, L], from its parts' squares."""
    total = np.zeros((len(squares[0]), len(trunk.anatomy.kinds)))
    for part, values in zip(trunk.parts, squares, strict=True):
        total[:, part.layer] += values
    return np.sqrt(total)


def _mean_per_host(values: Tensor) -> NDArray[np.float64]:
    """[T, N, B] -> [N], each host summed on its own."""
    rows = np.ascontiguousarray(values.numpy().swapaxes(0, 1)).reshape(values.shape[1], -1)
    means: NDArray[np.float64] = rows.mean(axis=1, dtype=np.float64)
    return means


def _pace(norm: NDArray[np.float64]) -> NDArray[np.float64]:
    """Learning rate, smaller where a norm must be brought down to the clip norm; NaN stays NaN."""
    return LEARNING_RATE * CLIP_NORM / np.maximum(norm, CLIP_NORM)
