"""One epoch of all hosts at once in fixed shapes: the arithmetic of ``training``, with masks for whose seed may move.

Nothing is read back: sums stay where the hosts are until the epoch is over, and the functions can be captured as they
are. Blueprints and trunks must keep to that too.
Shapes: T steps, N hosts, S slots, L layers, B batch, C classes, P parameters of a seed.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from simic.hosts.stacked import tensor_rng
from simic.hosts.stacked.anatomy import BATCH, CLIP_NORM, LEARNING_RATE, MOMENTUM, STEPS
from simic.hosts.stacked.cohort import TrainingSet
from simic.hosts.stacked.masked_pass import Cast, Option, Shown, run
from simic.hosts.stacked.training import score
from simic.hosts.stacked.trunk import Trunk
from simic.hosts.stacked.weights import HostWeights, SeedStore

__all__ = ["Ground", "probe_seeds", "record_width", "train_epoch"]


class Ground(NamedTuple):
    """All that training works on; its tensors never move."""

    trunk: Trunk
    options: tuple[tuple[Option, ...], ...]
    weights: HostWeights
    momentum: HostWeights
    seeds: SeedStore
    cast: Cast
    samples: TrainingSet
    order: Tensor
    """int64 [T, N * B]: rows of the samples, see ``Cohort.order``."""
    streams: Tensor
    """int64 [N, S]: of the epoch's noise."""


class _Gradient(NamedTuple):
    """What one step showed."""

    parts: tuple[Tensor, ...]
    seeds: Tensor
    """[N, S, P]"""
    losses: Tensor
    """[N, B] of the hosts."""
    hits: Tensor
    """bool [N, B]"""


def train_epoch(ground: Ground, out: Tensor) -> None:
    """Train in place; ``out`` float64 [N, record_width] becomes a ``TrainingRecord``, column by column."""
    slots, width = ground.seeds.parameters.shape[1:]
    cells = torch.arange(width, device=out.device) < ground.cast.width[:, :, None]
    trained = ground.cast.width > 0
    sums = torch.zeros_like(out)
    for step in range(STEPS):
        gradient = _backward(ground, step)
        squares = [torch.linalg.vector_norm(part.flatten(1), dim=1).double().square() for part in gradient.parts]
        norms = _seed_norms(gradient)
        _descend(ground, gradient, squares, norms, cells)
        layers = torch.stack(_per_layer(ground.trunk, squares), dim=1).sqrt()
        shown = (gradient.losses.double().mean(dim=1), gradient.hits.double().mean(dim=1))
        is_good = (norms.isfinite() & (norms > 0)).double()
        sums += torch.cat([torch.stack(shown, dim=1), layers, norms, is_good], dim=1)
    absent = torch.cat([torch.zeros_like(sums[:, : -2 * slots], dtype=torch.bool), ~trained, ~trained], dim=1)
    out.copy_((sums / STEPS).masked_fill(absent, torch.nan))


def probe_seeds(ground: Ground, out: Tensor) -> None:
    """Gradient norm of every seed that takes part on the first batch into ``out`` float64 [N, S]; NaN elsewhere."""
    norms = _seed_norms(_backward(ground, 0))
    out.copy_(norms.masked_fill(ground.cast.width == 0, torch.nan))


def record_width(layers: int, slots: int) -> int:
    """Columns of a record: loss, accuracy, layer gradients [L], seed gradients [S], seed health [S]."""
    return 2 + layers + 2 * slots


def _backward(ground: Ground, step: int) -> _Gradient:
    """Gradients of the sum over rows of the mean cross-entropy.

    All side rows are in it, but from one whose seed does not learn nothing leads to any parameter.
    """
    shown, targets = _shown(ground, step), _targets(ground, step)
    slots = len(ground.options)
    parts = [part.detach().requires_grad_() for part in ground.weights.parts]
    seeds = [ground.seeds.parameters[:, slot].detach().requires_grad_() for slot in range(slots)]
    with torch.enable_grad():
        flow = run(ground.trunk, parts, seeds, ground.options, ground.cast, shown, has_side=True)
        losses, hits = score(flow.logits, targets, classes_dim=1)
        total = losses.sum()
        if flow.side is not None:
            aside, _ = score(flow.side, targets.repeat(slots, 1, 1), classes_dim=1)
            total = total + aside.sum()
    gradients = torch.autograd.grad(total * (1.0 / BATCH), [*parts, *seeds], materialize_grads=True)
    count = len(parts)
    return _Gradient(gradients[:count], torch.stack(gradients[count:], dim=1), losses.detach(), hits)


def _shown(ground: Ground, step: int) -> Shown:
    samples, rows = ground.samples, ground.order[step]
    gains = [None if gain is None else _picked(gain, rows) for gain in samples.gains]
    sites = ground.trunk.anatomy.sites
    noise: list[Tensor | None] = []
    for slot, mine in enumerate(ground.options):
        count, wanted = BATCH * sites[slot].width, any(option.blueprint.is_noisy for option in mine)
        drawn = tensor_rng.noise(ground.streams[:, slot], count, step * count) if wanted else None
        noise.append(None if drawn is None else drawn.view(-1, BATCH, sites[slot].width))
    return Shown(_picked(samples.inputs, rows), gains, noise)


def _targets(ground: Ground, step: int) -> Tensor:
    """One-hot [N, C, B]."""
    labels = _picked(ground.samples.labels, ground.order[step])[:, None]
    return (labels == torch.arange(ground.trunk.anatomy.classes, device=labels.device)[:, None]).float()


def _picked(values: Tensor, rows: Tensor) -> Tensor:
    """[N, B, ...] of values [N, 512, ...]."""
    return values.flatten(0, 1).index_select(0, rows).view(-1, BATCH, *values.shape[2:])


def _descend(ground: Ground, gradient: _Gradient, squares: list[Tensor], norms: Tensor, cells: Tensor) -> None:
    """Clip, then SGD with momentum. What lies outside ``cells`` [N, S, P] keeps its bits, momentum included."""
    is_felt = ground.cast.is_felt
    felt = torch.where(is_felt, norms.square(), 0.0).sum(dim=1)
    shared = _pace((sum(squares[1:], squares[0]) + felt).sqrt())
    factor = shared.float()
    for part in gradient.parts:
        part.mul_(factor.view(-1, *[1] * (part.dim() - 1)))
    for part, momentum, weights in zip(gradient.parts, ground.momentum.parts, ground.weights.parts, strict=True):
        momentum.mul_(MOMENTUM).add_(part)
        weights.sub_(momentum)
    own = torch.where(is_felt, shared[:, None], _pace(norms)).float()
    parameters, momentum = ground.seeds
    moved = momentum * MOMENTUM + gradient.seeds * own[:, :, None]
    momentum.copy_(torch.where(cells, moved, momentum))
    parameters.copy_(torch.where(cells, parameters - moved, parameters))


def _seed_norms(gradient: _Gradient) -> Tensor:
    """float64 [N, S]"""
    norms: Tensor = torch.linalg.vector_norm(gradient.seeds, dim=2, dtype=torch.float64)
    return norms


def _per_layer(trunk: Trunk, squares: list[Tensor]) -> list[Tensor]:
    """Squares of each part [N], summed per layer."""
    layers = [torch.zeros_like(squares[0]) for _ in trunk.anatomy.kinds]
    for part, values in zip(trunk.parts, squares, strict=True):
        layers[part.layer] = layers[part.layer] + values
    return layers


def _pace(norm: Tensor) -> Tensor:
    """Learning rate, smaller where a norm must be brought down to the clip norm; NaN stays NaN."""
    return LEARNING_RATE * CLIP_NORM / norm.clamp(min=CLIP_NORM)
