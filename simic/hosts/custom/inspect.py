"""The layout of a module, found by a dry run: sizes of slots, edges between layers, number of classes.

Shapes: B samples, C classes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from simic.contracts.errors import ConfigError
from simic.contracts.state import LayerKind
from simic.hosts.custom.forward import LayerHook, RngStream, hooked, preserve_state, seeded_rng
from simic.hosts.custom.interface import Layer, ModuleHost
from simic.hosts.custom.readers import (
    Attachment,
    LeafRun,
    Shape,
    leaf_names,
    leaf_run,
    output_reader,
    reader_of,
    sample_shape,
    stable_runs,
)
from simic.hosts.custom.run_order import SEVERAL_INPUTS
from simic.hosts.custom.tasks import Kind, Task, task_of
from simic.hosts.interfaces import HostTopology, Site

__all__ = ["LogitsError", "ModuleLayout", "inspect_module", "layer_columns"]


class LogitsError(ConfigError):
    """What a module gives are no logits of its labels."""


class ModuleLayout(NamedTuple):
    """Topology of a module, and its hooks."""

    topology: HostTopology
    hooks: tuple[LayerHook, ...]
    """Per layer."""


class _Pass(NamedTuple):
    """Tensors of one traced pass."""

    outputs: list[Tensor]
    """Per layer: its output, with its autograd graph back to the leaves of the layers before."""
    leaves: list[Tensor]
    """Per layer: the leaf that replaced its output."""
    logits: Tensor
    inputs: list[Shape | None]
    """Per layer: the shape of one sample's input; None if it is not one float32 tensor."""
    leaf_runs: list[LeafRun]
    """Calls of convolutions and linear maps, in the order in which they ran."""


def inspect_module(
    module: nn.Module, host: ModuleHost, key: int, who: str, *, with_readers: bool = False
) -> ModuleLayout:
    """Find the layout by running training samples through ``module``, in both modes and two batch sizes.

    The module is not changed. ``with_readers`` also finds what reads the layers with slots, for widening seeds.

    Raises:
        ConfigError: if a layer's output is not a tensor, changes its shape, or layers do not run once in order.
    """
    task = task_of(host.validation.labels, who, host.loss)
    size = min(host.batch, len(host.train.labels))
    # Many modules take the axis of the samples away from a single one, as ``squeeze`` does.
    few = size - 1 if size > 2 else min(size + 1, len(host.train.labels))
    first = _trace(module, host, task, key, who, size, training=False)
    passes = [first]
    shapes = [tuple(output.shape[1:]) for output in first.outputs]
    for count, training in ((few, False), (size, True)):
        seen = _trace(module, host, task, key, who, count, training=training)
        passes.append(seen)
        for layer, shape, output in zip(host.layers, shapes, seen.outputs, strict=True):
            if tuple(output.shape) != (count, *shape):
                raise ConfigError(
                    f"{who}: layer {layer.name!r} changes its shape between passes: expected {(count, *shape)}, "
                    f"found {tuple(output.shape)}"
                )
        if seen.logits.shape != (count, *first.logits.shape[1:]):
            raise ConfigError(
                f"{who}: expected logits {(count, *first.logits.shape[1:])}, found {tuple(seen.logits.shape)}"
            )
    edges = _edges(first)
    hooks = _outlets(host.layers, first.outputs, who)
    if with_readers:
        hooks = _with_readers(module, hooks, edges, passes)
    sites = tuple(hook.site for hook in hooks)
    topology = HostTopology(
        kinds=tuple(layer.kind for layer in host.layers),
        widths=tuple(site.width for site in sites),
        connects=edges,
        sites=tuple(site for site, hook in zip(sites, hooks, strict=True) if hook.slot is not None),
        monitors=tuple((hook.slot, index) for index, hook in enumerate(hooks) if hook.slot is not None),
        classes=task.classes(first.logits),
        is_loss_judged=task.is_loss_judged,
    )
    return ModuleLayout(topology, hooks)


def layer_columns(hosts: Sequence[Sequence[Layer]]) -> dict[str, NDArray[Any]]:
    """Return the constant columns of the layers of N hosts, as ``HostBatch.layers`` has them."""
    widths = [[np.nan if layer.hidden_width is None else layer.hidden_width for layer in row] for row in hosts]
    return {
        "hidden_width": np.array(widths, dtype=np.float64),
        "is_linear": np.array([[layer.is_linear or layer.kind is LayerKind.HEAD for layer in row] for row in hosts]),
    }


def _trace(module: nn.Module, host: ModuleHost, task: Task, key: int, who: str, count: int, *, training: bool) -> _Pass:
    """Run one pass in which a leaf replaces every layer's output, so that gradients end at the layer before."""
    names = [layer.name for layer in host.layers]
    order: list[int] = []
    outputs: list[Tensor] = []
    leaves: list[Tensor] = []

    inputs: list[Shape | None] = []
    leaf_runs: list[LeafRun] = []
    parts = leaf_names(module)

    def note(index: int, arguments: Any, output: Any) -> None:
        leaf_runs.append(leaf_run(parts[index], arguments, output, count))

    def cut(index: int, arguments: Any, output: Any) -> Tensor:
        if not isinstance(output, Tensor) or not output.is_floating_point() or output.dim() < 2:
            found = f"{output.dtype} {tuple(output.shape)}" if isinstance(output, Tensor) else type(output).__name__
            hint = "" if isinstance(output, Tensor) else "; name a module around it that returns one tensor of these"
            raise ConfigError(
                f"{who}: layer {names[index]!r} must give a floating-point tensor [B, ...], found {found}{hint}"
            )
        order.append(index)
        inputs.append(sample_shape(arguments[0] if arguments else None, count))
        outputs.append(output)
        leaves.append(output.detach().clone().requires_grad_())
        # A copy, because later operations may work in place, which a leaf forbids.
        return leaves[-1].clone()

    few = host.train.inputs[:count]
    seeded = seeded_rng(key, RngStream.EVALUATION, device=few.device)
    with preserve_state(module, training=training), seeded, torch.enable_grad():
        try:
            with hooked(module, parts, note), hooked(module, names, cut):
                logits = module(few.clone())
        except (RuntimeError, ValueError, TypeError, IndexError) as error:
            mode = "training" if training else "evaluation"
            hint = f"; {SEVERAL_INPUTS}" if isinstance(error, TypeError) else ""
            raise ConfigError(
                f"{who}: the module fails on {count} of its samples in {mode} mode: {error}{hint}"
            ) from error
    if order != list(range(len(names))):
        ran = [names[index] for index in order]
        raise ConfigError(
            f"{who}: layers must run once each in the order given, {names}; found {ran}. For a layer that runs "
            "more than once, name a module around all its uses, or a torch.nn.Identity behind one of them"
        )
    _check_logits(logits, host.train.labels[:count], task, who)
    return _Pass(outputs, leaves, logits, inputs, leaf_runs)


def _check_logits(logits: Any, labels: Tensor, task: Task, who: str) -> None:
    count = len(labels)
    good = isinstance(logits, Tensor) and logits.dtype == torch.float32 and task.fault(logits, labels) is None
    if not good or task.classes(logits) < 2:
        found = f"{logits.dtype} {tuple(logits.shape)}" if isinstance(logits, Tensor) else type(logits).__name__
        wanted = {
            Kind.CLASS: f"logits [{count}, C >= 2]",
            Kind.POSITIONS: f"logits {[*labels.shape]} x C, C >= 2",
            Kind.BINARY: f"logits {[*labels.shape]}, one for each label",
            Kind.NUMBERS: f"numbers {[*labels.shape]}, as the targets",
        }
        hint = ""
        if not isinstance(logits, Tensor):
            hint = "; logits= takes them out of an output"
        elif task.kind is Kind.NUMBERS and logits.shape[:-1] == labels.shape and logits.shape[-1] > 1:
            hint = ". Labels of a float type mean regression; for classes, give them as int64: labels.long()"
        raise LogitsError(f"{who}: the module must give float32 {wanted[task.kind]}, found {found}{hint}")
    if not bool(logits.isfinite().all()):
        raise ConfigError(f"{who}: the module gives logits that are not finite before any training")


def _outlets(layers: Sequence[Layer], outputs: Sequence[Tensor], who: str) -> tuple[LayerHook, ...]:
    hooks: list[LayerHook] = []
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
        axis %= output.dim()
        shape = tuple(output.shape[1:])
        site = Site(shape[axis - 1], shape[: axis - 1] + shape[axis:])
        hooks.append(LayerHook(layer.name, axis, shape, slots if layer.has_slot else None, site))
        slots += layer.has_slot
    return tuple(hooks)


def _with_readers(
    module: nn.Module, hooks: Sequence[LayerHook], edges: Sequence[tuple[int, int]], passes: Sequence[_Pass]
) -> tuple[LayerHook, ...]:
    """Return the hooks of slots with what a widening seed needs, where that could be found."""
    runs = stable_runs([seen.leaf_runs for seen in passes])
    completed = list(hooks)
    for index, hook in enumerate(hooks):
        inputs = {seen.inputs[index] for seen in passes}
        read = next(iter(inputs)) if len(inputs) == 1 else None
        if hook.slot is None or read is None:
            continue
        axis = hook.axis if len(read) == len(hook.shape) else 1 if len(read) >= 3 else len(read)
        source = read[: axis - 1] + read[axis:]
        targets = [target for start, target in edges if start == index]
        if targets and (not hook.site.space or len(source) == len(hook.site.space) <= 2):
            places = tuple(_reader(module, hooks, index, target, runs, passes[0]) for target in targets)
            site = hook.site._replace(source=(*source, read[axis - 1]), readers=tuple(place.reader for place in places))
            completed[index] = hook._replace(site=site, input_axis=axis, readers=places)
    return tuple(completed)


def _reader(
    module: nn.Module, hooks: Sequence[LayerHook], index: int, target: int, runs: Sequence[LeafRun], seen: _Pass
) -> Attachment:
    """Return where the layer ``target`` reads the layer ``index``: its first leaf that does, or else its output."""
    state = id(seen.leaves[index])
    site = hooks[index].site
    place = reader_of(
        module, hooks[target].name, runs, lambda output: state in _leaves_behind(output), site.width, site.space
    )
    return place or output_reader(hooks[target].name, hooks[target].shape, hooks[target].axis)


def _edges(seen: _Pass) -> tuple[tuple[int, int], ...]:
    """Return (layer, layer) wherever the second's output depends on the first's without a layer between."""
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
    """Return ids of the tensors at which the autograd graph of ``output`` ends, without computing gradients."""
    ids: set[int] = set()
    seen: set[Any] = set()
    waiting = [output.grad_fn]
    while waiting:
        node = waiting.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        ids.add(id(getattr(node, "variable", None)))
        waiting += [other for other, _ in node.next_functions]
    return ids
