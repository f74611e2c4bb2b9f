"""One epoch of one host of a user's own.

Optimiser: SGD with momentum, as for stacked hosts: a host is clipped together with the seeds it feels, a seed that
learns in isolation on its own. Such a seed runs the host's network once more, alone and at alpha 1, and that pass
leaves no trace in the host: no gradient, no buffer, no draw.
Shapes: B batch, D features, C classes, P parameters of a seed, L layers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import cross_entropy

from simic.hosts import counter_rng
from simic.hosts.counter_rng import Purpose
from simic.hosts.modules.living import LivingHost, norm_of
from simic.hosts.modules.passes import Draw, Grown, drawn_for, forward, undisturbed
from simic.hosts.protocols import Blueprint

__all__ = ["EpochRecord", "Seedling", "probe_seed", "train_host"]


@dataclass
class Seedling:
    """A seed that takes part in an epoch."""

    slot: int
    blueprint: Blueprint
    alpha: float
    is_felt: bool
    """The host feels it; otherwise it learns in isolation."""
    parameters: Tensor
    """[1, P]; a leaf."""
    momentum: Tensor
    """[1, P], scaled by the learning rate."""
    norm_sum: float = 0.0
    good_steps: int = 0

    @property
    def learns(self) -> bool:
        """It has parameters."""
        return self.parameters.shape[1] > 0

    def grown(self, noise: Tensor | None, *, is_alone: bool = False) -> Grown:
        """As a pass needs it."""
        return Grown(self.blueprint, self.parameters, 1.0 if is_alone else self.alpha, noise)


class EpochRecord(NamedTuple):
    """Means over an epoch's steps or samples."""

    loss: float
    accuracy: float
    layer_gradient: list[float]
    """[L], before clipping."""


def train_host(host: LivingHost, seeds: Sequence[Seedling], epoch: int) -> EpochRecord:
    """Train the host and its seeds in place; the seeds sum up their gradients' norms and health."""
    rows = _order(host, epoch)
    logits, layers = [], np.zeros(len(host.wiring.outlets))
    for step in range(host.steps):
        inputs, labels = _batch(host, rows, step)
        drawn, gradients = _host_gradients(host, seeds, epoch, step, inputs, labels)
        alone = {
            id(seed): _lonely_gradient(host, seeds, seed, epoch, step, inputs, labels)
            for seed in seeds
            if not seed.is_felt and seed.learns
        }
        layers += _descend(host, seeds, gradients, alone)
        logits.append(drawn)
    return _record(torch.cat(logits), host.spec.train.labels[rows], layers / host.steps)


def probe_seed(host: LivingHost, seeds: Sequence[Seedling], seed: Seedling, epoch: int) -> float:
    """Gradient norm of one incubating seed on the epoch's first batch; nothing is changed."""
    inputs, labels = _batch(host, _order(host, epoch), 0)
    return norm_of(_lonely_gradient(host, seeds, seed, epoch, 0, inputs, labels))


def _order(host: LivingHost, epoch: int) -> Tensor:
    """Training samples in the order of the epoch, whole batches only."""
    order = counter_rng.permutations(counter_rng.streams(host.key, Purpose.ORDER, epoch), len(host.spec.train.labels))[
        0
    ]
    return torch.from_numpy(order[: host.steps * host.batch])


def _batch(host: LivingHost, rows: Tensor, step: int) -> tuple[Tensor, Tensor]:
    chosen = rows[step * host.batch : (step + 1) * host.batch]
    return host.spec.train.inputs.index_select(0, chosen), host.spec.train.labels.index_select(0, chosen)


def _noise(host: LivingHost, seed: Seedling, epoch: int, step: int) -> Tensor | None:
    """Uniform [1, B, D] for blueprints that want it."""
    if not seed.blueprint.is_noisy:
        return None
    width = host.wiring.anatomy.sites[seed.slot].width
    count = host.batch * width
    stream = counter_rng.streams(host.key, Purpose.DROPOUT, epoch, seed.slot)
    draws = counter_rng.bits(stream, count, start=step * count)
    values = (draws >> np.uint64(40)).astype(np.float32) * np.float32(2.0**-24)
    return torch.from_numpy(values.reshape(1, host.batch, width))


def _host_gradients(
    host: LivingHost, seeds: Sequence[Seedling], epoch: int, step: int, inputs: Tensor, labels: Tensor
) -> tuple[Tensor, list[Tensor]]:
    """Logits [B, C], and gradients of the host's parameters, then of the felt seeds that learn."""
    felt = [seed for seed in seeds if seed.is_felt]
    leaves = [*host.trained.values(), *(seed.parameters for seed in felt if seed.learns)]
    host.module.train()
    with drawn_for(host.key, Draw.TRAINING, epoch, step), torch.enable_grad():
        grown = {seed.slot: seed.grown(_noise(host, seed, epoch, step)) for seed in felt}
        logits = forward(host.module, host.wiring.outlets, inputs.clone(), grown)
        gradients = torch.autograd.grad(cross_entropy(logits, labels), leaves, allow_unused=True)
    pairs = zip(leaves, gradients, strict=True)
    return logits.detach(), [torch.zeros_like(leaf) if own is None else own for leaf, own in pairs]


def _lonely_gradient(
    host: LivingHost, seeds: Sequence[Seedling], seed: Seedling, epoch: int, step: int, inputs: Tensor, labels: Tensor
) -> Tensor:
    """Gradient [1, P] of the loss of the host's network with ``seed`` at alpha 1, felt seeds passing through.

    Inputs are copied for every pass, since a module may change them in place. The module draws what it drew for the
    host itself in this step.
    """
    with (
        undisturbed(host.module, training=True),
        drawn_for(host.key, Draw.TRAINING, epoch, step),
        torch.enable_grad(),
    ):
        grown = {other.slot: other.grown(_noise(host, other, epoch, step)) for other in seeds if other.is_felt}
        grown[seed.slot] = seed.grown(_noise(host, seed, epoch, step), is_alone=True)
        logits = forward(host.module, host.wiring.outlets, inputs.clone(), grown)
        (gradient,) = torch.autograd.grad(cross_entropy(logits, labels), seed.parameters, allow_unused=True)
    return torch.zeros_like(seed.parameters) if gradient is None else gradient


@torch.no_grad()
def _descend(
    host: LivingHost, seeds: Sequence[Seedling], gradients: list[Tensor], alone: dict[int, Tensor]
) -> list[float]:
    """Clip, then SGD with momentum; returns the layers' gradient norms [L] before clipping."""
    trained = host.trained
    felt = [seed for seed in seeds if seed.is_felt and seed.learns]
    norms = {name: norm_of(own) for name, own in zip(trained, gradients, strict=False)}
    own = gradients[len(trained) :]
    together = float(np.sqrt(np.sum(np.square([*norms.values(), *map(norm_of, own)]))))
    shared = _pace(host, together)
    for (name, parameter), gradient in zip(trained.items(), gradients, strict=False):
        _move(host, parameter, host.momentum[name], gradient, shared)
    for seed, gradient in zip(felt, own, strict=True):
        _count(seed, norm_of(gradient))
        _move(host, seed.parameters, seed.momentum, gradient, shared)
    for seed in seeds:
        if id(seed) in alone:
            gradient = alone[id(seed)]
            _count(seed, norm_of(gradient))
            _move(host, seed.parameters, seed.momentum, gradient, _pace(host, norm_of(gradient)))
    return host.layer_norms(norms)


def _move(host: LivingHost, parameter: Tensor, momentum: Tensor, gradient: Tensor, pace: float) -> None:
    momentum.mul_(host.spec.momentum).add_(gradient * pace)
    parameter.sub_(momentum)


def _count(seed: Seedling, norm: float) -> None:
    seed.norm_sum += norm
    seed.good_steps += bool(np.isfinite(norm) and norm > 0)


def _pace(host: LivingHost, norm: float) -> float:
    """Learning rate, smaller where a norm must be brought down to the clip norm; NaN stays NaN."""
    return float(host.spec.learning_rate * host.spec.clip_norm / np.maximum(norm, host.spec.clip_norm))


def _record(logits: Tensor, labels: Tensor, layers: NDArray[np.float64]) -> EpochRecord:
    """From the epoch's logits [n, C] and labels [n]; a tie for the largest logit is a miss."""
    index = labels.unsqueeze(1)
    wanted = logits.gather(1, index)[:, 0]
    others = logits.scatter(1, index, -torch.inf).amax(dim=1)
    likelihood = logits.log_softmax(dim=1).gather(1, index)[:, 0].double()
    return EpochRecord(float(-likelihood.mean()), float((wanted > others).double().mean()), layers.tolist())
