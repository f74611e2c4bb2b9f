"""What a module looks like from outside, found by running it: sizes of slots, edges between layers, classes.

Shapes: B samples, C classes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from simic.contracts.errors import ConfigError
from simic.contracts.state import LayerKind
from simic.hosts.modules.family import Layer, ModuleHost
from simic.hosts.modules.passes import Draw, Outlet, drawn_for, hooked, undisturbed
from simic.hosts.protocols import Anatomy, Site

__all__ = ["Wiring", "is_linear", "wiring_of"]


class Wiring(NamedTuple):
    """A module's layers and slots."""

    anatomy: Anatomy
    outlets: tuple[Outlet, ...]
    """Per layer."""


class _Pass(NamedTuple):
    """What one pass showed."""

    outputs: list[Tensor]
    """Per layer; they depend on what came out of the layers before as far as autograd can tell."""
    leaves: list[Tensor]
    """Per layer: what was handed on in the output's stead."""
    logits: Tensor


def wiring_of(module: nn.Module, host: ModuleHost, key: int, who: str) -> Wiring:
    """Run a few training samples through ``module``, in both modes and in two sizes; the module stays as it was.

    Raises ConfigError for layers that are no tensors, do not run once each in the order given, or change their shape.
    """
    size = min(host.batch, len(host.train.labels))
    few = max(1, size - 1)
    first = _look(module, host, key, who, size, training=False)
    shapes = [tuple(output.shape[1:]) for output in first.outputs]
    for count, training in ((few, False), (size, True)):
        seen = _look(module, host, key, who, count, training=training)
        for layer, shape, output in zip(host.layers, shapes, seen.outputs, strict=True):
            if tuple(output.shape) != (count, *shape):
                raise ConfigError(
                    f"{who}: layer {layer.name!r} changes its shape between passes: expected {(count, *shape)}, "
                    f"found {tuple(output.shape)}"
                )
        if seen.logits.shape != (count, first.logits.shape[1]):
            raise ConfigError(
                f"{who}: expected logits {(count, first.logits.shape[1])}, found {tuple(seen.logits.shape)}"
            )
    outlets = _outlets(host.layers, first.outputs, who)
    sites = tuple(
        Site(outlet.shape[outlet.axis - 1], outlet.shape[: outlet.axis - 1] + outlet.shape[outlet.axis :])
        for outlet in outlets
    )
    anatomy = Anatomy(
        kinds=tuple(layer.kind for layer in host.layers),
        widths=tuple(site.width for site in sites),
        connects=_edges(first),
        sites=tuple(site for site, outlet in zip(sites, outlets, strict=True) if outlet.slot is not None),
        monitors=tuple((outlet.slot, index) for index, outlet in enumerate(outlets) if outlet.slot is not None),
        classes=int(first.logits.shape[1]),
    )
    return Wiring(anatomy, outlets)


def is_linear(layer: Layer) -> bool:
    """No nonlinearity follows."""
    return layer.is_linear or layer.kind is LayerKind.HEAD


def _look(module: nn.Module, host: ModuleHost, key: int, who: str, count: int, *, training: bool) -> _Pass:
    """One pass in which every layer hands on a leaf of its own, so that gradients end at the layer before."""
    names = [layer.name for layer in host.layers]
    order: list[int] = []
    outputs: list[Tensor] = []
    leaves: list[Tensor] = []

    def cut(index: int, output: Any) -> Tensor:
        if not isinstance(output, Tensor) or not output.is_floating_point() or output.dim() < 2:
            found = f"{output.dtype} {tuple(output.shape)}" if isinstance(output, Tensor) else type(output).__name__
            raise ConfigError(
                f"{who}: layer {names[index]!r} must give a floating-point tensor [B, ...], found {found}"
            )
        order.append(index)
        outputs.append(output)
        leaves.append(output.detach().clone().requires_grad_())
        # A copy, because what follows may work in place, which a leaf forbids.
        return leaves[-1].clone()

    with undisturbed(module, training=training), drawn_for(key, Draw.EVALUATION), torch.enable_grad():
        try:
            with hooked(module, names, cut):
                logits = module(host.train.inputs[:count].clone())
        except (RuntimeError, ValueError, TypeError, IndexError) as error:
            mode = "training" if training else "evaluation"
            raise ConfigError(f"{who}: the module fails on {count} of its samples in {mode} mode: {error}") from error
    if order != list(range(len(names))):
        ran = [names[index] for index in order]
        raise ConfigError(f"{who}: layers must run once each in the order given, {names}; found {ran}")
    _check_logits(logits, count, who)
    return _Pass(outputs, leaves, logits)


def _check_logits(logits: Any, count: int, who: str) -> None:
    good = isinstance(logits, Tensor) and logits.dim() == 2 and len(logits) == count and logits.shape[1] >= 2
    if not good or logits.dtype != torch.float32:
        found = f"{logits.dtype} {tuple(logits.shape)}" if isinstance(logits, Tensor) else type(logits).__name__
        raise ConfigError(f"{who}: the module must give float32 logits [{count}, C >= 2], found {found}")
    if not bool(logits.isfinite().all()):
        raise ConfigError(f"{who}: the module gives logits that are not finite before any training")


def _outlets(layers: Sequence[Layer], outputs: Sequence[Tensor], who: str) -> tuple[Outlet, ...]:
    found: list[Outlet] = []
    slots = 0
    for layer, output in zip(layers, outputs, strict=True):
        axis = layer.feature_axis
        if axis is None:
            axis = 1 if output.dim() >= 4 else output.dim() - 1
        elif not -output.dim() < axis < output.dim() or axis % output.dim() == 0:
            raise ConfigError(
                f"{who}: layer {layer.name!r} has feature_axis {axis}; its output {tuple(output.shape)} has axes "
                f"1 to {output.dim() - 1} behind the samples"
            )
        if layer.has_slot and output.dtype != torch.float32:
            raise ConfigError(f"{who}: slots need float32, layer {layer.name!r} gives {output.dtype}")
        found.append(
            Outlet(layer.name, axis % output.dim(), tuple(output.shape[1:]), slots if layer.has_slot else None)
        )
        slots += layer.has_slot
    return tuple(found)


def _edges(seen: _Pass) -> tuple[tuple[int, int], ...]:
    """(layer, layer) wherever the second's output depends on the first's without another layer between."""
    number = {id(leaf): index for index, leaf in enumerate(seen.leaves)}
    return tuple(
        sorted(
            (number[leaf], target)
            for target, output in enumerate(seen.outputs)
            for leaf in _leaves_behind(output)
            if leaf in number
        )
    )


def _leaves_behind(output: Tensor) -> set[int]:
    """Ids of the tensors at which the graph of ``output`` ends; it is only walked, no gradient is computed."""
    found: set[int] = set()
    seen: set[Any] = set()
    waiting = [output.grad_fn]
    while waiting:
        node = waiting.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        found.add(id(getattr(node, "variable", None)))
        waiting += [other for other, _ in node.next_functions]
    return found
