"""Which blueprints would let earlier positions of a causal model see later ones.

A model with a label per position is causal if its outputs at earlier positions do not depend on later inputs, as those
of a language model. Its later inputs are often its labels. A seed that mixes positions would read them, and the model
would have that accuracy in training only. Both the model and the blueprints are tried out, because neither says what it
mixes.
Shapes: n samples, B few of them, T positions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from simic.contracts.errors import ConfigError
from simic.hosts.custom.forward import ActiveSeed, LayerHook, forked_rng, grow_output, hooked, preserve_state
from simic.hosts.custom.host import CustomHost
from simic.hosts.interfaces import Blueprint, DataSplit

__all__ = ["looking_ahead"]

_FEW = 8
"""Samples of a pass."""
_SEARCHED = 256
"""Samples among which those of a pass are looked for."""
_SPREAD = 0.05
"""Standard deviation of what is added to initial parameters, of which many are zero. It is small, because a gate of
large parameters is open or closed whatever it reads."""


class _Swap(NamedTuple):
    """Samples, and the same ones with the later positions of others."""

    inputs: Tensor
    """[B, ...]"""
    changed: Tensor
    """[B, ...]"""
    earlier: int
    """Positions of the labels that come before all changes."""


def looking_ahead(host: CustomHost, blueprints: Mapping[str, Blueprint]) -> list[str]:
    """Return the names of those ``blueprints`` through which earlier positions of a causal model would see later ones.

    Blueprints that do not suit every slot are left aside, and all of them if the model is not causal. A model whose
    outputs do not depend on the inputs yet, as with a head of zeros, counts as causal.

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
    inputs, labels = host.samples(DataSplit.VALIDATION)
    axes: list[set[int]] = [set() for _ in hooks]
    for of_labels in range(1, labels.dim()):
        positions = labels.shape[of_labels]
        for of_inputs in _axes_of_inputs(inputs, positions) if positions > 1 else ():
            swap = _swap(inputs, of_inputs, positions)
            if swap is None:
                continue
            *before, logits = _outputs(host, hooks, swap.inputs)
            *after, changed = _outputs(host, hooks, swap.changed)
            if _unchanged(logits, changed, of_labels) < swap.earlier:
                continue
            sizes = (positions, inputs.shape[of_inputs])
            for own, hook, h, other in zip(axes, hooks, before, after, strict=True):
                own.update(_axes_of_output(hook, h, other, sizes))
    return axes


def _axes_of_inputs(inputs: Tensor, positions: int) -> list[int]:
    """Return the axes that may be those of the positions: all of their size, or else every one."""
    axes = [axis for axis in range(1, inputs.dim()) if inputs.shape[axis] > 1]
    return [axis for axis in axes if inputs.shape[axis] == positions] or axes


def _swap(inputs: Tensor, axis: int, positions: int) -> _Swap | None:
    """Return samples with about the second half exchanged, or None if they do not differ behind the first position.

    A half, because the last input may be padding, or nothing that the model reads.
    """
    size = inputs.shape[axis]
    few = inputs[:_SEARCHED].movedim(axis, 1)
    differs = (few != few[:1]).reshape(len(few), size, -1).any(dim=2)
    # A model may give fewer positions than it reads, or more.
    earlier = {start: positions - max(size - start, -(-(size - start) * positions // size)) for start in range(1, size)}
    starts = [start for start in torch.nonzero(differs.any(dim=0))[:, 0].tolist() if earlier.get(start, 0) > 0]
    if not starts:
        return None
    middle = size - max(1, min(size, positions) // 2)
    start = min(starts, key=lambda start: abs(start - middle))
    others = torch.nonzero(differs[:, start])[: _FEW - 1, 0]
    whole = torch.cat([few[:1], few[others]])
    changed = whole.clone()
    changed[1:, start:], changed[0, start:] = whole[0, start:], whole[1, start:]
    return _Swap(whole.movedim(1, axis), changed.movedim(1, axis), earlier[start])


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


def _unchanged(before: Tensor, after: Tensor, axis: int) -> int:
    """Return at how many places, from the first one along the axis, two tensors are equal."""
    differs = (before != after).movedim(axis, 0).flatten(1).any(dim=1)
    return int(differs.int().argmax()) if bool(differs.any()) else len(differs)


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
        parameters = blueprint.birth(draw(1, count), hook.site) + _SPREAD * draw(1, count)
        for noise in noises:
            seed = ActiveSeed(blueprint, parameters, 1.0, noise)
            if _unchanged(grow_output(hook, seed, h), grow_output(hook, seed, other), axis) < last:
                return True
    except (RuntimeError, ValueError, TypeError, IndexError) as error:
        # An installed blueprint is code of another package.
        raise ConfigError(f"blueprint {type(blueprint).__name__} fails on {hook.site}: {error}") from error
    return False
