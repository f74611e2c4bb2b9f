"""Checks of custom hosts before anything is trained. Shapes: n samples."""

from __future__ import annotations

import difflib
import math
from collections.abc import Mapping, Sequence

from torch import Tensor, nn

from simic.contracts.errors import ConfigError, DatasetError
from simic.contracts.state import LayerKind
from simic.hosts.custom.interface import Layer, ModuleHost, Samples
from simic.hosts.custom.run_order import SEVERAL_INPUTS
from simic.hosts.custom.tasks import IGNORED, task_of

__all__ = ["check_host", "check_labels", "check_layers", "check_samples", "check_unshared", "parts_of"]


_OF_SGD = (ModuleHost.learning_rate, ModuleHost.momentum)
"""Settings that only SGD has."""


def check_host(host: ModuleHost, who: str) -> None:
    """Check settings, layers and samples of a host; ``who`` names it in messages.

    Raises:
        ConfigError: for invalid settings, layers or modules.
        DatasetError: for invalid samples.
    """
    if not isinstance(host, ModuleHost) or not isinstance(host.module, nn.Module):
        kind = type(getattr(host, "module", host)).__name__
        raise ConfigError(f"{who}: `host` must return a ModuleHost around a torch.nn.Module, found {kind}")
    for name, at_most in (("batch", 2**20), ("learning_rate", math.inf), ("clip_norm", math.inf)):
        value = getattr(host, name)
        if not 0 < value < at_most:
            raise ConfigError(f"{who}: {name} must be positive and finite, found {value}")
    if not 0 <= host.momentum < 1:
        raise ConfigError(f"{who}: momentum must lie in [0, 1), found {host.momentum}")
    if host.optimizer is not None and (host.learning_rate, host.momentum) != _OF_SGD:
        settings = f"learning_rate {host.learning_rate} and momentum {host.momentum} beside an optimizer"
        raise ConfigError(f"{who}: found {settings}, which has its own; set them where it is made, not in the host")
    if not any(parameter.requires_grad for parameter in host.module.parameters()):
        raise ConfigError(f"{who}: the module has no parameter to train")
    for name, tensor in [*host.module.named_parameters(), *host.module.named_buffers()]:
        if tensor.device.type != "cpu":
            raise ConfigError(f"{who}: {name} lies on {tensor.device}; hosts train on the CPU, return `module.cpu()`")
    check_layers(host.module, host.layers, who)
    for part, samples in parts_of(host).items():
        check_samples(samples, f"{who}, {part}")
    first = host.train.inputs
    for part, samples in parts_of(host).items():
        if samples.inputs.shape[1:] != first.shape[1:] or samples.inputs.dtype != first.dtype:
            raise DatasetError(
                f"{who}, {part}: expected inputs {first.dtype} [n, {', '.join(map(str, first.shape[1:]))}] as in "
                f"train, found {samples.inputs.dtype} {list(samples.inputs.shape)}"
            )


def check_labels(parts: Mapping[str, Samples], classes: int, who: str) -> None:
    """Raise DatasetError if a label of samples, by the name of their part, has no logit, or parts differ in kind."""
    (first, like), *_ = ((part, samples.labels) for part, samples in parts.items())
    for part, samples in parts.items():
        if samples.labels.dtype != like.dtype or samples.labels.shape[1:] != like.shape[1:]:
            raise DatasetError(
                f"{who}, {part}: expected labels {like.dtype} {['n', *like.shape[1:]]} as in {first}, "
                f"found {samples.labels.dtype} {list(samples.labels.shape)}"
            )
        if samples.labels.is_floating_point():
            continue
        known = samples.labels[samples.labels != IGNORED] if samples.labels.dim() > 1 else samples.labels
        low, high = int(known.min()), int(known.max())
        if low < 0 or high >= classes:
            raise DatasetError(
                f"{who}, {part}: the module gives {classes} logits, so labels must lie in [0, {classes}), "
                f"found {low} to {high}"
            )


def check_unshared(modules: Sequence[nn.Module], names: Sequence[str]) -> None:
    """Raise ConfigError if two hosts share a parameter: training one would train the other."""
    owner: dict[int, int] = {}
    for index, module in enumerate(modules):
        for name, parameter in module.named_parameters():
            if not parameter.numel():
                continue
            other = owner.setdefault(parameter.untyped_storage().data_ptr(), index)
            if other != index:
                raise ConfigError(
                    f"{names[index]}: parameter {name} is shared with {names[other]}; make a new module for every key"
                )


def parts_of(host: ModuleHost) -> dict[str, Samples]:
    """Return the samples of a host by the name of their part."""
    return {"train": host.train, "validation": host.validation, "test": host.test}


def check_layers(module: nn.Module, layers: Sequence[Layer], who: str) -> None:
    """Raise ConfigError unless the layers are different submodules of ``module``, and one of them has a slot."""
    known = dict(module.named_modules())
    for layer in layers:
        if not isinstance(layer, Layer) or not isinstance(layer.kind, LayerKind):
            raise ConfigError(f"{who}: expected a Layer with a LayerKind, found {layer!r}")
        if layer.name not in known or not layer.name:
            near = difflib.get_close_matches(layer.name, known, n=1)
            hint = (
                f"; did you mean {near[0]!r}?"
                if near
                else f"; known layers: {', '.join(sorted(set(known) - {''})[:20])}"
            )
            raise ConfigError(f"{who}: the module has no layer {layer.name!r}{hint}")
    if len({id(known[layer.name]) for layer in layers}) != len(layers):
        raise ConfigError(f"{who}: layers {[layer.name for layer in layers]} name one submodule more than once")
    if not any(layer.has_slot for layer in layers):
        raise ConfigError(f"{who}: no layer has a slot, so nothing can grow; set has_slot on at least one")


def check_samples(samples: Samples, where: str) -> None:
    """Raise DatasetError unless ``samples`` are finite inputs with labels of a task, which are not all alike."""
    inputs, labels = samples
    if not isinstance(inputs, Tensor) or not isinstance(labels, Tensor):
        kinds = type(inputs).__name__, type(labels).__name__
        hint = f"; {SEVERAL_INPUTS}" if isinstance(inputs, (tuple, list, dict)) else ""
        raise DatasetError(f"{where}: inputs and labels must be tensors, found {kinds[0]} and {kinds[1]}{hint}")
    if labels.dim() == 0 or not len(labels) or inputs.dim() == 0 or not len(inputs):
        raise DatasetError(f"{where}: expected at least one sample, found none")
    if len(inputs) != len(labels):
        raise DatasetError(f"{where}: {len(inputs)} inputs and {len(labels)} labels; each input needs one label")
    if inputs.is_floating_point() and not bool(inputs.isfinite().all()):
        bad = int((~inputs.isfinite()).flatten(1).any(dim=1).sum()) if inputs.dim() > 1 else 1
        raise DatasetError(f"{where}: inputs must be finite, found NaN or infinity in {bad} of {len(inputs)} samples")
    task_of(labels, where)
    known = labels[labels != IGNORED]
    if not labels.is_floating_point() and bool((known == known[:1]).all()):
        problem = f"are {int(known[0])}" if len(known) else f"are {IGNORED}, which counts for none"
        raise DatasetError(f"{where}: expected at least two classes, all {len(labels)} labels {problem}")
