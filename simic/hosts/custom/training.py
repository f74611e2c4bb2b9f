"""One training epoch of one custom host.

Optimiser: SGD with momentum, as for batched hosts: the gradient of a host is clipped together with its active seeds,
that of an incubating seed alone. An incubating seed runs the host's network once more at alpha 1; that pass changes no
gradient, buffer or random state of the host.
Shapes: B batch, D features, C classes, P parameters of a seed, L layers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from simic.hosts import rng
from simic.hosts.custom.forward import ActiveSeed, RngStream, forked_rng, forward, preserve_state, seed_generators
from simic.hosts.custom.host import CustomHost, norm_of
from simic.hosts.interfaces import Blueprint, Site
from simic.hosts.rng import Purpose

__all__ = ["CustomSeed", "EpochRecord", "batch_of", "probe_seed", "sample_order", "seed_noise", "train_host"]


@dataclass
class CustomSeed:
    """A participating seed during one epoch."""

    slot: int
    blueprint: Blueprint
    alpha: float
    is_active: bool
    """Whether alpha > 0; otherwise the seed learns in isolation."""
    parameters: Tensor
    """[1, P]; a leaf."""
    momentum: Tensor
    """[1, P], scaled by the learning rate."""
    norm_sum: float = 0.0
    good_steps: int = 0

    @property
    def learns(self) -> bool:
        """Return whether the seed has parameters."""
        return self.parameters.shape[1] > 0

    def grown(self, noise: Tensor | None, *, is_alone: bool = False) -> ActiveSeed:
        """Return the seed for one forward pass; ``is_alone`` sets alpha to 1."""
        return ActiveSeed(self.blueprint, self.parameters, 1.0 if is_alone else self.alpha, noise)


class EpochRecord(NamedTuple):
    """Means over the steps or samples of an epoch."""

    loss: float
    accuracy: float
    layer_gradient: list[float]
    """[L], before clipping."""


def train_host(host: CustomHost, seeds: Sequence[CustomSeed], epoch: int) -> EpochRecord:
    """Train the host and its seeds in place; each seed accumulates its gradient norm and health."""
    rows = sample_order(host, epoch)
    logits, layers = [], np.zeros(len(host.layout.hooks))
    with forked_rng(rows.device):
        for step in range(host.steps):
            inputs, labels = batch_of(host, rows, step)
            drawn, gradients = _host_gradients(host, seeds, epoch, step, inputs, labels)
            alone = {
                id(seed): _isolated_gradient(host, seeds, seed, epoch, step, inputs, labels)
                for seed in seeds
                if not seed.is_active and seed.learns
            }
            layers += _sgd_step(host, seeds, gradients, alone)
            logits.append(drawn)
    likelihood, hits = host.task.score(torch.cat(logits), host.spec.train.labels[rows])
    return EpochRecord(float(-likelihood.mean()), float(hits.mean()), (layers / host.steps).tolist())


def probe_seed(host: CustomHost, seeds: Sequence[CustomSeed], seed: CustomSeed, epoch: int) -> float:
    """Return the gradient norm of one incubating seed on the epoch's first batch; changes nothing."""
    inputs, labels = batch_of(host, sample_order(host, epoch), 0)
    with forked_rng(inputs.device):
        return norm_of(_isolated_gradient(host, seeds, seed, epoch, 0, inputs, labels))


def sample_order(host: CustomHost, epoch: int) -> Tensor:
    """Return the sample order of the epoch, complete batches only."""
    order = rng.permutations(rng.streams(host.key, Purpose.ORDER, epoch), len(host.spec.train.labels))[0]
    return torch.from_numpy(order[: host.steps * host.batch])


def batch_of(host: CustomHost, rows: Tensor, step: int) -> tuple[Tensor, Tensor]:
    """Return inputs and labels of a step of the epoch with this order of samples."""
    chosen = rows[step * host.batch : (step + 1) * host.batch]
    return host.spec.train.inputs.index_select(0, chosen), host.spec.train.labels.index_select(0, chosen)


def _noise(host: CustomHost, seed: CustomSeed, epoch: int, step: int) -> Tensor | None:
    """Return uniform noise [1, B, D] for a noisy blueprint, else None."""
    if not seed.blueprint.is_noisy:
        return None
    return seed_noise(host.key, seed.slot, epoch, step * host.batch, host.batch, host.layout.topology.sites[seed.slot])


def _host_gradients(
    host: CustomHost, seeds: Sequence[CustomSeed], epoch: int, step: int, inputs: Tensor, labels: Tensor
) -> tuple[Tensor, list[Tensor]]:
    """Return logits [B, C], and gradients of the host's parameters, then of its active seeds.

    All passes seed the generators, which their callers restore.
    """
    active = [seed for seed in seeds if seed.is_active]
    leaves = [*host.trained.values(), *(seed.parameters for seed in active if seed.learns)]
    host.module.train()
    seed_generators(host.key, RngStream.TRAINING, epoch, step)
    with torch.enable_grad():
        grown = {seed.slot: seed.grown(_noise(host, seed, epoch, step)) for seed in active}
        logits = forward(host.module, host.layout.hooks, inputs.clone(), grown)
        gradients = torch.autograd.grad(host.loss(logits, labels), leaves, allow_unused=True)
    pairs = zip(leaves, gradients, strict=True)
    return logits.detach(), [torch.zeros_like(leaf) if own is None else own for leaf, own in pairs]


def _isolated_gradient(
    host: CustomHost,
    seeds: Sequence[CustomSeed],
    seed: CustomSeed,
    epoch: int,
    step: int,
    inputs: Tensor,
    labels: Tensor,
) -> Tensor:
    """Return the gradient [1, P] of the loss with ``seed`` at alpha 1 and all active seeds.

    Inputs are copied for every pass, because a module may change them in place. The module draws the same random
    numbers as in the host's own pass of this step.
    """
    seed_generators(host.key, RngStream.TRAINING, epoch, step)
    with preserve_state(host.module, training=True), torch.enable_grad():
        grown = {other.slot: other.grown(_noise(host, other, epoch, step)) for other in seeds if other.is_active}
        grown[seed.slot] = seed.grown(_noise(host, seed, epoch, step), is_alone=True)
        logits = forward(host.module, host.layout.hooks, inputs.clone(), grown)
        (gradient,) = torch.autograd.grad(host.loss(logits, labels), seed.parameters, allow_unused=True)
    return torch.zeros_like(seed.parameters) if gradient is None else gradient


@torch.no_grad()
def _sgd_step(
    host: CustomHost, seeds: Sequence[CustomSeed], gradients: list[Tensor], alone: dict[int, Tensor]
) -> list[float]:
    """Clip, then take an SGD step with momentum; returns the layers' gradient norms [L] before clipping."""
    trained = host.trained
    active = [seed for seed in seeds if seed.is_active and seed.learns]
    norms = {name: norm_of(own) for name, own in zip(trained, gradients, strict=False)}
    own = gradients[len(trained) :]
    together = float(np.sqrt(np.sum(np.square([*norms.values(), *map(norm_of, own)]))))
    shared = _clipped_lr(host, together)
    for (name, parameter), gradient in zip(trained.items(), gradients, strict=False):
        _move(host, parameter, host.momentum[name], gradient, shared)
    for seed, gradient in zip(active, own, strict=True):
        _count(seed, norm_of(gradient))
        _move(host, seed.parameters, seed.momentum, gradient, shared)
    for seed in seeds:
        if id(seed) in alone:
            gradient = alone[id(seed)]
            _count(seed, norm_of(gradient))
            _move(host, seed.parameters, seed.momentum, gradient, _clipped_lr(host, norm_of(gradient)))
    return host.layer_norms(norms)


def _move(host: CustomHost, parameter: Tensor, momentum: Tensor, gradient: Tensor, pace: float) -> None:
    momentum.mul_(host.spec.momentum).add_(gradient * pace)
    parameter.sub_(momentum)


def seed_noise(key: int, slot: int, epoch: int, first: int, samples: int, site: Site) -> Tensor:
    """Return uniform noise [1, B, D] of a slot for B samples, of which ``first`` others came before in the epoch."""
    stream = rng.streams(key, Purpose.DROPOUT, epoch, slot)
    draws = rng.bits(stream, samples * site.width, start=first * site.width)
    values = (draws >> np.uint64(40)).astype(np.float32) * np.float32(2.0**-24)
    return torch.from_numpy(values.reshape(1, samples, site.width))


def _count(seed: CustomSeed, norm: float) -> None:
    seed.norm_sum += norm
    seed.good_steps += bool(np.isfinite(norm) and norm > 0)


def _clipped_lr(host: CustomHost, norm: float) -> float:
    """Return the learning rate times min(1, clip norm / norm); NaN stays NaN."""
    return float(host.spec.learning_rate * host.spec.clip_norm / np.maximum(norm, host.spec.clip_norm))
