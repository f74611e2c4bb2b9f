"""One epoch of all hosts at once in fixed shapes: the arithmetic of ``batched.training`` with masks.

No value is read back before the epoch is over, so a CUDA graph can capture the functions. The same holds for the
blueprints and trunks they call.
Shapes: T steps, N hosts, S slots, L layers, B batch, C classes, P parameters of a seed.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from simic.hosts.batched.dataset import TrainingSet
from simic.hosts.batched.masked.forward import BlueprintOption, SeedTensors, StepInputs, run
from simic.hosts.batched.sizes import BATCH, CLIP_NORM, LEARNING_RATE, MOMENTUM, STATISTIC_RATE, STEPS
from simic.hosts.batched.training import score
from simic.hosts.batched.trunk import Trunk
from simic.hosts.batched.weights import HostWeights, SeedStore

__all__ = ["Buffers", "probe_seeds", "record_width", "train_epoch", "uniform_noise"]


class Buffers(NamedTuple):
    """All tensors that training reads and writes; their addresses never change."""

    trunk: Trunk
    options: tuple[tuple[BlueprintOption, ...], ...]
    weights: HostWeights
    momentum: HostWeights
    seeds: SeedStore
    seed_tensors: SeedTensors
    samples: TrainingSet
    order: Tensor
    """int64 [T, N * B]: sample order, see ``HostDataset.order``."""
    streams: Tensor
    """int64 [N, S]: noise streams of the epoch."""
    rate: Tensor
    """float64 [N]: factor of the learning rate, see ``StepSizes``."""
    kept: Tensor | None
    """float32 [N]: see ``StepSizes``."""


class _StepGradient(NamedTuple):
    """Gradients, losses and hits of one step."""

    parts: tuple[Tensor, ...]
    seeds: Tensor
    """[N, S, P]"""
    losses: Tensor
    """[N, B] of the hosts."""
    hits: Tensor
    """bool [N, B]"""


def train_epoch(buffers: Buffers, out: Tensor) -> None:
    """Train one epoch in place; writes the columns of a ``TrainingRecord`` to ``out`` float64 [N, record_width]."""
    slots, width = buffers.seeds.parameters.shape[1:]
    cells = torch.arange(width, device=out.device) < buffers.seed_tensors.width[:, :, None]
    trained = buffers.seed_tensors.width > 0
    sums = torch.zeros_like(out)
    for step in range(STEPS):
        gradient = _backward(buffers, step)
        squares = _part_squares(buffers.trunk, gradient)
        norms = _seed_norms(gradient)
        _sgd_step(buffers, gradient, squares, norms, cells)
        layers = torch.stack(_per_layer(buffers.trunk, squares), dim=1).sqrt()
        shown = (gradient.losses.double().mean(dim=1), gradient.hits.double().mean(dim=1))
        is_good = (norms.isfinite() & (norms > 0)).double()
        sums += torch.cat([torch.stack(shown, dim=1), layers, norms, is_good], dim=1)
    absent = torch.cat([torch.zeros_like(sums[:, : -2 * slots], dtype=torch.bool), ~trained, ~trained], dim=1)
    out.copy_((sums / STEPS).masked_fill(absent, torch.nan))


def probe_seeds(buffers: Buffers, out: Tensor) -> None:
    """Write the gradient norm of every participating seed on the first batch to ``out`` float64 [N, S], else NaN."""
    norms = _seed_norms(_backward(buffers, 0))
    out.copy_(norms.masked_fill(buffers.seed_tensors.width == 0, torch.nan))


def record_width(layers: int, slots: int) -> int:
    """Return the number of columns: loss, accuracy, layer gradients [L], seed gradients [S], seed health [S]."""
    return 2 + layers + 2 * slots


def _backward(buffers: Buffers, step: int) -> _StepGradient:
    """Return the gradients of the sum over rows of the mean cross-entropy.

    The sum includes all side rows; one whose seed does not learn is detached from every parameter.
    """
    shown, targets = _step_inputs(buffers, step), _targets(buffers, step)
    slots = len(buffers.options)
    parts = [part.detach().requires_grad_() for part in buffers.weights.parts]
    seeds = [buffers.seeds.parameters[:, slot].detach().requires_grad_() for slot in range(slots)]
    with torch.enable_grad():
        result = run(buffers.trunk, parts, seeds, buffers.options, buffers.seed_tensors, shown, has_side=True)
        losses, hits = score(result.logits, targets, classes_dim=1)
        total = losses.sum()
        if result.side is not None:
            aside, _ = score(result.side, targets.repeat(slots, 1, 1), classes_dim=1)
            total = total + aside.sum()
    gradients = torch.autograd.grad(total * (1.0 / BATCH), [*parts, *seeds], materialize_grads=True)
    count = len(parts)
    return _StepGradient(gradients[:count], torch.stack(gradients[count:], dim=1), losses.detach(), hits)


def _step_inputs(buffers: Buffers, step: int) -> StepInputs:
    samples, rows = buffers.samples, buffers.order[step]
    gains = [None if gain is None else _select(gain, rows) for gain in samples.gains]
    sites = buffers.trunk.topology.sites
    noise: list[Tensor | None] = []
    for slot, mine in enumerate(buffers.options):
        count, wanted = BATCH * sites[slot].width, any(option.blueprint.is_noisy for option in mine)
        drawn = uniform_noise(buffers.streams[:, slot], count, step * count) if wanted else None
        noise.append(None if drawn is None else drawn.view(-1, BATCH, sites[slot].width))
    return StepInputs(_select(samples.inputs, rows), gains, noise)


def _targets(buffers: Buffers, step: int) -> Tensor:
    """Return one-hot labels [N, C, B] of a step."""
    labels = _select(buffers.samples.labels, buffers.order[step])[:, None]
    return (labels == torch.arange(buffers.trunk.topology.classes, device=labels.device)[:, None]).float()


def _select(values: Tensor, rows: Tensor) -> Tensor:
    """Return the rows [N, B, ...] of values [N, 512, ...]."""
    return values.flatten(0, 1).index_select(0, rows).view(-1, BATCH, *values.shape[2:])


def _sgd_step(buffers: Buffers, gradient: _StepGradient, squares: list[Tensor], norms: Tensor, cells: Tensor) -> None:
    """Clip, then take an SGD step with momentum; entries outside ``cells`` bool [N, S, P] keep their bits."""
    is_active = buffers.seed_tensors.is_active
    active = torch.where(is_active, norms.square(), 0.0).sum(dim=1)
    shared = _clipped_lr((sum(squares[1:], squares[0]) + active).sqrt()) * buffers.rate
    factor = shared.float()
    stores = (buffers.trunk.parts, gradient.parts, buffers.momentum.parts, buffers.weights.parts)
    for spec, part, momentum, weights in zip(*stores, strict=True):
        if spec.is_statistic:
            weights.sub_(momentum.copy_(part.mul_(STATISTIC_RATE)))
            continue
        momentum.mul_(MOMENTUM).add_(part.mul_(factor.view(-1, *[1] * (part.dim() - 1))))
        weights.copy_(_shrunk(weights, buffers.kept) - momentum)
    own = torch.where(is_active, shared[:, None], _clipped_lr(norms) * buffers.rate[:, None]).float()
    parameters, momentum = buffers.seeds
    moved = momentum * MOMENTUM + gradient.seeds * own[:, :, None]
    momentum.copy_(torch.where(cells, moved, momentum))
    parameters.copy_(torch.where(cells, _shrunk(parameters, buffers.kept) - moved, parameters))


def _shrunk(values: Tensor, kept: Tensor | None) -> Tensor:
    """Return parameters [N, ...] after weight decay."""
    return values if kept is None else values * kept.view(-1, *[1] * (values.dim() - 1))


def _part_squares(trunk: Trunk, gradient: _StepGradient) -> list[Tensor]:
    """Return the squared norm [N] of the gradient of each part; 0 for a statistic."""
    squares = []
    for spec, part in zip(trunk.parts, gradient.parts, strict=True):
        norm = torch.linalg.vector_norm(part.flatten(1), dim=1).double()
        squares.append(torch.zeros_like(norm) if spec.is_statistic else norm.square())
    return squares


def _seed_norms(gradient: _StepGradient) -> Tensor:
    """Return the gradient norm of each slot's seed, float64 [N, S]."""
    norms: Tensor = torch.linalg.vector_norm(gradient.seeds, dim=2, dtype=torch.float64)
    return norms


def _per_layer(trunk: Trunk, squares: list[Tensor]) -> list[Tensor]:
    """Return the squared norms [N] summed per layer."""
    layers = [torch.zeros_like(squares[0]) for _ in trunk.topology.kinds]
    for part, values in zip(trunk.parts, squares, strict=True):
        layers[part.layer] = layers[part.layer] + values
    return layers


def _clipped_lr(norm: Tensor) -> Tensor:
    """Return the learning rate times min(1, clip norm / norm); NaN stays NaN."""
    return LEARNING_RATE * CLIP_NORM / norm.clamp(min=CLIP_NORM)


_SHIFT_TO_24_BITS = 40


def uniform_noise(stream: Tensor, count: int, start: int = 0) -> Tensor:
    """Return draws ``start`` to ``start + count - 1`` of each stream int64 [N]: uniform [N, M] in [0, 1), 24 bits."""
    counters = torch.arange(start + 1, start + count + 1, device=stream.device) * _signed(0x9E3779B97F4A7C15)
    z = stream[:, None] + counters
    z = (z ^ _shifted(z, 30)) * _signed(0xBF58476D1CE4E5B9)
    z = (z ^ _shifted(z, 27)) * _signed(0x94D049BB133111EB)
    z = z ^ _shifted(z, 31)
    return _shifted(z, _SHIFT_TO_24_BITS).float() * 2.0**-24


def _shifted(z: Tensor, by: int) -> Tensor:
    return (z >> by) & ((1 << (64 - by)) - 1)


def _signed(word: int) -> int:
    """Return the int64 with the bits of an unsigned word."""
    return word - (1 << 64) if word >> 63 else word
