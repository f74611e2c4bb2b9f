"""Which blueprints would let earlier positions of a causal model see later ones.

A model with a label per position is causal if its outputs at earlier positions do not depend on later inputs, as those
of a language model. Its later inputs are often its labels. A seed that mixes positions would read them, and the model
would have that accuracy in training only. Both the model and the blueprints are tried out, because neither says what it
mixes.

Only these axes are taken for positions:

- Classes int64 [n, T]: an axis of T places of the inputs. Integer inputs [n, L] may also have another length, as with a
  prefix that has no labels: their last position then belongs to the last label.
- Numbers float32 [n, T] or [n, T, F], either axis: an axis of as many places of the inputs.

Independent channels look like positions of which none sees another. So an axis counts only if later outputs depend on
earlier inputs, except that of classes [n, T] with the inputs [n, T] or [n, T, ...], where channels seldom come first.
Images [n, H, W] of labels have no order, and sequences that a model shortens by a stride are left alone.
Shapes: n samples, B few of them, L positions of inputs, T of labels.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from simic.contracts.errors import ConfigError
from simic.hosts.custom.forward import ActiveSeed, LayerHook, forked_rng, grow_output, hooked, preserve_state
from simic.hosts.custom.host import CustomHost
from simic.hosts.custom.tasks import IGNORED, Kind
from simic.hosts.interfaces import Blueprint, DataSplit

__all__ = ["looking_ahead"]

_FEW = 8
"""Most samples of a pass."""
_SEARCHED = 256
"""Samples among which those of a pass are looked for."""
_ROUNDING = 1e-5
"""Largest change that is none, as a share of the values that change; a convolution by FFT rounds by some 1e-7."""
_SPREAD = 0.05
"""Standard deviation of what is added to initial parameters, of which many are zero. It is small, because a gate of
large parameters is open or closed whatever it reads."""


class _Order(NamedTuple):
    """Axes along which a model may be causal."""

    labels: int
    inputs: int
    is_known: bool
    """Whether it is one of positions also if none of them sees another."""
    is_first: bool
    """Whether it comes right behind the samples, with features behind it."""


class _Swap(NamedTuple):
    """Samples, and the same ones with the later positions of others."""

    inputs: Tensor
    """[B, ...]"""
    changed: Tensor
    """[B, ...]"""
    start: int
    """Position of the inputs from which on they are exchanged."""


def looking_ahead(host: CustomHost, blueprints: Mapping[str, Blueprint]) -> list[str]:
    """Return the names of those ``blueprints`` through which earlier positions of a causal model would see later ones.

    Blueprints that do not suit every slot are left aside, and all of them if the model is not causal. A model whose
    outputs do not depend on the inputs yet, as with a head of zeros, counts as causal along the first axis.

    Raises:
        ConfigError: if a blueprint fails, or none of those that suit every slot remains.
    """
    hooks = [hook for hook in host.layout.hooks if hook.slot is not None]
    suiting = [name for name, blueprint in blueprints.items() if all(blueprint.suits(hook.site) for hook in hooks)]
    axes = _axes_of_positions(host, hooks)
    # Layers of one shape are alike for a blueprint.
    places = {(hook.axis, hook.shape, axis): hook for hook, own in zip(hooks, axes, strict=True) for axis in own}
    ahead = [
        name
        for name in suiting
        if any(_looks_ahead(blueprints[name], hook, axis) for (_, _, axis), hook in places.items())
    ]
    if ahead and len(ahead) == len(suiting):
        sites = ", ".join(map(str, sorted({hook.site for hook in hooks})))
        raise ConfigError(
            f"none of the blueprints {', '.join(blueprints)} can grow in every one of {sites}: this model is causal, "
            f"and {', '.join(ahead)} would let earlier positions see later ones; add one that does not mix positions, "
            "such as dense"
        )
    return ahead


def _axes_of_positions(host: CustomHost, hooks: Sequence[LayerHook]) -> list[set[int]]:
    """Return the axes of each layer's output along which the model is causal; empty sets if it is not."""
    axes: list[set[int]] = [set() for _ in hooks]
    inputs, labels = host.samples(DataSplit.VALIDATION)
    for order in _orders(inputs, labels, host.task.kind):
        for own, more in zip(axes, _axes_along(host, hooks, order), strict=True):
            own.update(more)
    return axes


def _orders(inputs: Tensor, labels: Tensor, kind: Kind) -> Iterator[_Order]:
    """Yield all pairs of axes that may be those of the positions, as the module's documentation has them."""
    is_classes = kind is Kind.POSITIONS
    if kind is Kind.CLASS or labels.dim() > (2 if is_classes else 3):
        return
    for of_labels in range(1, labels.dim()):
        positions = labels.shape[of_labels]
        same = [axis for axis in range(1, inputs.dim()) if inputs.shape[axis] == positions]
        is_text = is_classes and inputs.dim() == 2 and not inputs.is_floating_point()
        for of_inputs in (same or ([1] if is_text else [])) if positions > 1 else ():
            is_first = of_labels == of_inputs == 1
            yield _Order(of_labels, of_inputs, is_classes and is_first, is_first and inputs.dim() > 2)


def _axes_along(host: CustomHost, hooks: Sequence[LayerHook], order: _Order) -> list[set[int]]:
    """Return the axes of each layer's output that belong to this order; empty sets if the model does not keep it.

    Every start has to show it. A model that sees a few neighbours on either side may change no earlier output for one
    start, if it has other positions than its inputs.
    """
    inputs, labels = host.samples(DataSplit.VALIDATION)
    nothing: list[set[int]] = [set() for _ in hooks]
    axes: list[set[int]] | None = None
    positions, size = labels.shape[order.labels], inputs.shape[order.inputs]
    counts = torch.ones(positions, dtype=torch.bool, device="cpu")
    if host.task.kind is Kind.POSITIONS:
        # A model may read a source in both directions, if no position of it has a label.
        counts = (labels != IGNORED).any(dim=0).cpu()
    # Positions of the inputs that come before the first one of the labels.
    ahead = max(0, size - positions)
    has_memory, is_blind, delays = False, True, set[int]()
    for swap in _swaps(inputs, order.inputs, ahead + int(counts.int().argmax()), max(2, min(_FEW, host.chunk))):
        *before, logits = _outputs(host, hooks, swap.inputs)
        *after, changed = _outputs(host, hooks, swap.changed)
        changes = _changes(logits, changed, order.labels) & counts
        if bool(changes[: swap.start - ahead].any()):
            return nothing
        if bool(changes.any()):
            is_blind = False
            delays.add(int(changes.int().argmax()) - swap.start)
        # Now the later inputs are those of another sample, and the earlier ones are not.
        others = torch.cat([logits[1:2], logits[:1].expand_as(logits[1:])])
        has_memory |= bool(_changes(others, changed, order.labels)[swap.start - ahead :].any())
        if axes is None:
            pairs = zip(hooks, before, after, strict=True)
            axes = [_axes_of_output(hook, h, other, (positions, size)) for hook, h, other in pairs]
    is_order = order.is_known or has_memory or (is_blind and order.is_first)
    # With a stride, the first change of the outputs does not move along with the start.
    is_shortened = size != positions and len(delays) > 1
    return axes if axes is not None and is_order and not is_shortened else nothing


def _swaps(inputs: Tensor, axis: int, behind: int, count: int) -> Iterator[_Swap]:
    """Yield at most ``count`` samples with the later positions of others, from a middle, a last and a first start on.

    All starts lie behind a position, and samples differ there. The last inputs may be padding, or nothing that the
    model reads.
    """
    size = inputs.shape[axis]
    few = inputs[:_SEARCHED].movedim(axis, 1)
    differs = (few != few[:1]).reshape(len(few), size, -1).any(dim=2)
    starts = [start for start in torch.nonzero(differs.any(dim=0))[:, 0].tolist() if start > behind]
    for start in dict.fromkeys([starts[len(starts) // 2], starts[-1], starts[0]] if starts else []):
        others = torch.nonzero(differs[:, start])[: count - 1, 0]
        whole = torch.cat([few[:1], few[others]])
        changed = whole.clone()
        changed[1:, start:], changed[0, start:] = whole[0, start:], whole[1, start:]
        yield _Swap(whole.movedim(1, axis), changed.movedim(1, axis), start)


@torch.no_grad()
def _outputs(host: CustomHost, hooks: Sequence[LayerHook], inputs: Tensor) -> list[Tensor]:
    """Return the outputs of the layers and the logits of a pass in evaluation mode; all passes have equal noise."""
    outputs: dict[int, Tensor] = {}

    def note(index: int, _arguments: Any, output: Tensor) -> None:
        outputs[index] = output.clone()  # a later layer may work in place on it

    names = [hook.name for hook in hooks]
    with preserve_state(host.module, training=False), forked_rng(inputs.device), hooked(host.module, names, note):
        logits = host.module(inputs.clone())
    return [*(outputs[index] for index in range(len(hooks))), logits]


def _axes_of_output(hook: LayerHook, before: Tensor, after: Tensor, sizes: Sequence[int]) -> set[int]:
    """Return the axes of a layer's output that may be those of the positions, with one of these ``sizes``.

    The axis of the features is one only by its size: a convolution over a sequence may have given them the last axis.
    """
    axes = [axis for axis in range(1, before.dim()) if axis != hook.axis or before.shape[axis] in sizes]
    kept = {axis: _unchanged(before, after, axis) / before.shape[axis] for axis in axes if before.shape[axis] > 1}
    if not kept:
        return set()
    if min(kept.values()) == 1.0:  # as a layer that gives zeros until it has learned
        named = [axis for axis in kept if before.shape[axis] in sizes] or list(kept)
        return {axis for axis in named if axis != hook.axis} or set(named)
    # Several axes begin with places that stay as they are, where the first features are zero at all positions.
    best = max(kept, key=lambda axis: (kept[axis], axis != hook.axis))
    return {best} if kept[best] > 0 else set()


def _unchanged(before: Tensor, after: Tensor, axis: int, rounding: float = _ROUNDING) -> int:
    """Return at how many places, from the first one along the axis, two tensors are equal."""
    changes = _changes(before, after, axis, rounding)
    return int(changes.int().argmax()) if bool(changes.any()) else len(changes)


def _changes(before: Tensor, after: Tensor, axis: int, rounding: float = _ROUNDING) -> Tensor:
    """Return at which places along the axis two tensors differ by more than ``rounding``, bool [T].

    It is a share of the largest of those values that differ at all: constants may be large, as those of a mask.
    """
    differs = before != after
    sizes = torch.maximum(before.abs(), after.abs()).where(differs & before.isfinite() & after.isfinite(), 0.0)
    # What is not finite is never within the limit.
    differs &= ~((before - after).abs() <= rounding * sizes.max())
    return differs.movedim(axis, 0).flatten(1).any(dim=1).cpu()


@torch.no_grad()
def _looks_ahead(blueprint: Blueprint, hook: LayerHook, axis: int) -> bool:
    """Return whether a seed changes earlier places along the axis when the last one changes."""
    chance = torch.Generator("cpu").manual_seed(0)

    def draw(*shape: int) -> Tensor:
        return torch.randn(shape, generator=chance, device="cpu")  # whatever the owner's default device is

    count, last = blueprint.parameters(hook.site), hook.shape[axis - 1] - 1
    h = draw(2, *hook.shape)
    other = h.clone()
    other.narrow(axis, last, 1).copy_(10.0 * draw(*other.narrow(axis, last, 1).shape))
    noises = [None, draw(1, 2, hook.site.width).sigmoid()] if blueprint.is_noisy else [None]
    try:
        # Without tolerance, because a mean over many positions changes by little.
        parameters = blueprint.birth(draw(1, count), hook.site) + _SPREAD * draw(1, count)
        for noise in noises:
            seed = ActiveSeed(blueprint, parameters, 1.0, noise)
            if _unchanged(grow_output(hook, seed, h), grow_output(hook, seed, other), axis, rounding=0.0) < last:
                return True
    except (RuntimeError, ValueError, TypeError, IndexError) as error:
        # An installed blueprint is code of another package.
        raise ConfigError(f"blueprint {type(blueprint).__name__} fails on {hook.site}: {error}") from error
    return False
