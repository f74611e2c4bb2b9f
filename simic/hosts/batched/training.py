"""One epoch of all hosts at once.

Extra rows (seeds learning in isolation) receive gradients like any other row but pass none to weights or to the host
they branched from. Hosts share only ``bmm`` and elementwise operations, so no host's bits depend on the others.
Optimiser: SGD with momentum; the gradient of a host is clipped together with its active seeds, that of an incubating
seed alone.
Shapes: T steps, N hosts, L layers, B batch, D features, S slots, C classes, n seeds of a group.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from simic.hosts.batched.seeds import PackedSeeds
from simic.hosts.batched.sizes import CLIP_NORM, LEARNING_RATE, MOMENTUM, STATISTIC_RATE, STEPS
from simic.hosts.batched.trunk import StepBatch, Trunk, per_row
from simic.hosts.batched.weights import HostWeights
from simic.hosts.interfaces import HostRecipe, TrainingRecord

__all__ = ["EpochBatches", "StepSizes", "layer_norms", "part_squares", "probe_seeds", "score", "train_epoch"]


class EpochBatches(NamedTuple):
    """The batches of one epoch."""

    inputs: Tensor
    """[T, N, B, ...]"""
    targets: Tensor
    """[T, N, C, B], one-hot."""
    gains: tuple[Tensor | None, ...]
    """Per block: factor of its output, [T, N, B, 1], or None where no host has one."""
    noise: dict[tuple[int, int], Tensor]
    """(slot, group) -> [T, n, B, D] uniform, for blueprints that want it."""
    samples: NDArray[np.int64]
    """[N]: distinct samples in the batches."""

    def step(self, index: int, packed: PackedSeeds) -> StepBatch:
        """Return the batch of one step."""
        by_slot = [0 if slot_seeds is None else len(slot_seeds.groups) for slot_seeds in packed.by_slot]
        drawn = ([self.noise.get((slot, group)) for group in range(groups)] for slot, groups in enumerate(by_slot))
        return StepBatch(
            self.inputs[index],
            self.targets[index],
            tuple(None if gain is None else gain[index] for gain in self.gains),
            tuple([None if noise is None else noise[index] for noise in row] for row in drawn),
        )


class StepSizes(NamedTuple):
    """What differs between the hosts' optimisers; a host with a rate of 1 and no decay has the same bits without it."""

    rate: NDArray[np.float64]
    """[N]: factor of the learning rate."""
    kept: NDArray[np.float32] | None
    """[N]: the factor by which weight decay multiplies parameters in each step, or None where no host decays."""

    @staticmethod
    def of(recipes: Sequence[HostRecipe]) -> StepSizes:
        """Return the step sizes of hosts."""
        rate = np.array([recipe.rate for recipe in recipes])
        decay = np.array([recipe.decay for recipe in recipes])
        return StepSizes(rate, (1.0 - LEARNING_RATE * rate * decay).astype(np.float32) if decay.any() else None)


def train_epoch(
    trunk: Trunk,
    weights: HostWeights,
    momentum: HostWeights,
    packed: PackedSeeds,
    batches: EpochBatches,
    sizes: StepSizes,
) -> TrainingRecord:
    """Train one epoch in place; ``momentum`` is scaled by the learning rate."""
    run = _Epoch(trunk, weights, momentum, packed)
    logits = torch.empty_like(batches.targets)
    with torch.no_grad():
        for step in range(STEPS):
            logits[step] = run.backward(batches.step(step, packed))[: run.hosts]
            run.sgd_step(sizes)
        return run.record(logits, batches)


def probe_seeds(trunk: Trunk, weights: HostWeights, packed: PackedSeeds, batches: EpochBatches) -> NDArray[np.float64]:
    """Return the gradient norm [N, S] of every incubating seed on the first batch, NaN elsewhere; changes nothing."""
    run = _Epoch(trunk, weights, weights, packed)
    with torch.no_grad():
        run.backward(batches.step(0, packed))
    return run.seed_means(1)[0]


class _Epoch:
    """Buffers and sums of one epoch; ``order`` holds the (host, slot) of each packed seed with parameters."""

    def __init__(self, trunk: Trunk, weights: HostWeights, momentum: HostWeights, packed: PackedSeeds) -> None:
        self.trunk, self.weights, self.momentum, self.packed = trunk, weights, momentum, packed
        self.hosts, slots = len(weights.parts[0]), len(packed.by_slot)
        self.gradient = HostWeights.zeros(self.hosts, [part.shape for part in trunk.parts])
        self.seed_gradient = torch.zeros_like(packed.parameters)
        groups = [(slot, group) for slot, group in packed.groups() if group.parameters.shape[1]]
        for _, group in groups:
            group.parameters.requires_grad_(True)
        self.order = (
            np.concatenate([[], *(group.hosts for _, group in groups)]).astype(np.int64),
            np.repeat([slot for slot, _ in groups], [len(group.hosts) for _, group in groups]).astype(np.int64),
        )
        widths = np.repeat([g.parameters.shape[1] for _, g in groups], [len(g.hosts) for _, g in groups])
        self.widths = widths.astype(np.int64)
        self.offsets = np.cumsum(self.widths) - self.widths
        self.is_active = np.zeros((self.hosts, slots), dtype=bool)
        self.is_active[self.order] = np.concatenate([[], *(group.is_active for _, group in groups)])
        self.seed_norms = np.zeros((self.hosts, slots))
        self.layer_sums = np.zeros((self.hosts, len(trunk.topology.kinds)))
        self.seed_sums = np.zeros((self.hosts, slots))
        self.seed_good = np.zeros((self.hosts, slots))

    def backward(self, batch: StepBatch) -> Tensor:
        """Compute all gradients; returns logits [R, C, B]."""
        rows = per_row(self.trunk, self.weights, self.packed.layout)
        logits, own = self.trunk.backpropagate(rows, self.packed, batch, self.gradient)
        if own:
            torch.cat([gradient.view(-1) for gradient in own], out=self.seed_gradient)
            self._count_seeds()
        return logits

    def _count_seeds(self) -> None:
        squares = np.square(self.seed_gradient.numpy(), dtype=np.float64)
        norms = np.sqrt(np.add.reduceat(squares, self.offsets))
        self.seed_norms[self.order] = norms
        self.seed_sums[self.order] += norms
        self.seed_good[self.order] += np.isfinite(norms) & (norms > 0)

    def sgd_step(self, sizes: StepSizes) -> None:
        """Clip, then take an SGD step with momentum; fused operations are avoided, as they round differently."""
        squares = part_squares(self.trunk, self.gradient)
        total = sum(squares[1:], squares[0])
        for slot in range(self.is_active.shape[1]):
            total = total + np.where(self.is_active[:, slot], self.seed_norms[:, slot] ** 2, 0.0)
        shared = _clipped_lr(np.sqrt(total)) * sizes.rate
        factor = torch.from_numpy(shared.astype(np.float32))
        for part, momentum, spec in zip(self.gradient.parts, self.momentum.parts, self.trunk.parts, strict=True):
            if spec.is_statistic:
                part.mul_(STATISTIC_RATE)
                momentum.zero_()
            else:
                part.mul_(factor.view(-1, *[1] * (part.dim() - 1)))
        self.momentum.flat.mul_(MOMENTUM).add_(self.gradient.flat)
        self._decay(sizes.kept)
        self.weights.flat.sub_(self.momentum.flat)
        if len(self.offsets):
            own = np.where(self.is_active, shared[:, None], _clipped_lr(self.seed_norms) * sizes.rate[:, None])[
                self.order
            ]
            self.seed_gradient.mul_(torch.from_numpy(np.repeat(own.astype(np.float32), self.widths)))
            self.packed.momentum.mul_(MOMENTUM).add_(self.seed_gradient)
            self.packed.parameters.sub_(self.packed.momentum)
        self.layer_sums += layer_norms(self.trunk, squares)

    def _decay(self, kept: NDArray[np.float32] | None) -> None:
        """Shrink the parameters of hosts and of the seeds that train."""
        if kept is None:
            return
        factor = torch.from_numpy(kept)
        for part, spec in zip(self.weights.parts, self.trunk.parts, strict=True):
            if not spec.is_statistic:
                part.mul_(factor.view(-1, *[1] * (part.dim() - 1)))
        if len(self.offsets):
            self.packed.parameters.mul_(torch.from_numpy(np.repeat(kept[self.order[0]], self.widths)))

    def record(self, logits: Tensor, batches: EpochBatches) -> TrainingRecord:
        """Return the means of the epoch from its logits [T, N, C, B]."""
        loss, hits = score(logits, batches.targets, classes_dim=2)
        seed_gradient, seed_health = self.seed_means(STEPS)
        return TrainingRecord(
            loss=_mean_per_host(loss),
            accuracy=_mean_per_host(hits),
            layer_gradient=self.layer_sums / STEPS,
            seed_gradient=seed_gradient,
            seed_health=seed_health,
            samples=batches.samples.astype(np.float64),
        )

    def seed_means(self, steps: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return mean gradient norm and health per seed, [N, S]; parameters stop requiring gradients."""
        for _, group in self.packed.groups():
            group.parameters.requires_grad_(False)
        gradient, health = np.full((2, *self.is_active.shape), np.nan)
        gradient[self.order] = self.seed_sums[self.order] / steps
        health[self.order] = self.seed_good[self.order] / steps
        return gradient, health


def score(logits: Tensor, targets: Tensor, classes_dim: int) -> tuple[Tensor, Tensor]:
    """Return cross-entropy and hit of every sample; a tie for the largest logit is a miss."""
    loss = -(logits.log_softmax(dim=classes_dim) * targets).sum(dim=classes_dim)
    wanted = (logits * targets).sum(dim=classes_dim)
    return loss, wanted > logits.masked_fill(targets > 0, -torch.inf).amax(dim=classes_dim)


def part_squares(trunk: Trunk, weights: HostWeights) -> list[NDArray[np.float64]]:
    """Return the squared norm of each part, [N] each; 0 for a statistic, which is no parameter."""
    squares = []
    for part, spec in zip(weights.parts, trunk.parts, strict=True):
        norm = torch.linalg.vector_norm(part.flatten(1), dim=1).cpu().numpy().astype(np.float64)
        squares.append(np.zeros(len(norm)) if spec.is_statistic else norm * norm)
    return squares


def layer_norms(trunk: Trunk, squares: list[NDArray[np.float64]]) -> NDArray[np.float64]:
    """Return the norm of each layer, [N, L], from the squared norms of its parts."""
    total = np.zeros((len(squares[0]), len(trunk.topology.kinds)))
    for part, values in zip(trunk.parts, squares, strict=True):
        total[:, part.layer] += values
    return np.sqrt(total)


def _mean_per_host(values: Tensor) -> NDArray[np.float64]:
    """[T, N, B] -> [N], each host summed on its own."""
    rows = np.ascontiguousarray(values.numpy().swapaxes(0, 1)).reshape(values.shape[1], -1)
    means: NDArray[np.float64] = rows.mean(axis=1, dtype=np.float64)
    return means


def _clipped_lr(norm: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the learning rate times min(1, clip norm / norm); NaN stays NaN."""
    return LEARNING_RATE * CLIP_NORM / np.maximum(norm, CLIP_NORM)
