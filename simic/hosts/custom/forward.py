"""Forward passes of a custom module with seeds, without side effects on module or random generator.

Shapes: B samples, C channels or classes, D features, P parameters of a seed, L layers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from simic.contracts.errors import ConfigError
from simic.hosts import rng
from simic.hosts.blueprint_checks import change_of
from simic.hosts.interfaces import Blueprint
from simic.hosts.rng import Purpose

__all__ = ["ActiveSeed", "LayerHook", "LayerObserver", "RngStream", "forward", "hooked", "preserve_state", "seeded_rng"]

LayerObserver = Callable[[int, Tensor, Tensor | None], None]
"""Called with (layer, output before the slot, change by the seed or None), [1, B, *space, D] each."""


class RngStream:
    """Purposes of torch's generator; part of its seed."""

    BIRTH = 0
    TRAINING = 1
    EVALUATION = 2


class LayerHook(NamedTuple):
    """The layer of a forward hook, and the shape of its output."""

    name: str
    axis: int
    """Axis of the features; samples are axis 0."""
    shape: tuple[int, ...]
    """Shape of one sample's output."""
    slot: int | None
    """The slot on the layer, or None."""


class ActiveSeed(NamedTuple):
    """A seed of one forward pass."""

    blueprint: Blueprint
    parameters: Tensor
    """[1, P]"""
    alpha: float
    noise: Tensor | None = None
    """Uniform [1, B, D], for noisy blueprints in training."""


def forward(
    module: nn.Module,
    hooks: Sequence[LayerHook],
    inputs: Tensor,
    seeds: Mapping[int, ActiveSeed],
    observer: LayerObserver | None = None,
) -> Tensor:
    """Return logits [B, C] of the module with ``seeds`` by slot; all hooks are removed afterwards."""

    def pass_layer(index: int, output: Any) -> Tensor | None:
        hook = hooks[index]
        if not isinstance(output, Tensor) or output.shape != (len(inputs), *hook.shape):
            found = tuple(output.shape) if isinstance(output, Tensor) else type(output).__name__
            raise ConfigError(
                f"layer {hook.name!r}: expected an output {(len(inputs), *hook.shape)} as in the dry run, "
                f"found {found}; a layer's output must be a tensor of one shape in every pass"
            )
        seed = None if hook.slot is None else seeds.get(hook.slot)
        if seed is None:
            if observer is not None:
                observer(index, _features_last(output, hook.axis), None)
            return None
        h = _features_last(output, hook.axis)
        change = change_of(seed.blueprint.operator, h, seed.blueprint.delta(seed.parameters, h, seed.noise))
        change = change * seed.alpha
        if observer is not None:
            observer(index, h, change)
        return (h + change).squeeze(0).movedim(-1, hook.axis).contiguous()

    with hooked(module, [hook.name for hook in hooks], pass_layer):
        logits: Tensor = module(inputs)
    return logits


def _features_last(output: Tensor, axis: int) -> Tensor:
    """Return [1, B, *space, D], contiguous, as blueprints expect it."""
    return output.movedim(axis, -1).contiguous().unsqueeze(0)


@contextmanager
def hooked(module: nn.Module, names: Sequence[str], hook: Callable[[int, Any], Any]) -> Iterator[None]:
    """Call ``hook(index, output)`` after each named layer; a result other than None replaces the output."""

    def call(index: int, _module: nn.Module, _inputs: Any, output: Any) -> Any:
        return hook(index, output)

    handles = []
    try:
        for index, name in enumerate(names):
            handles.append(module.get_submodule(name).register_forward_hook(partial(call, index)))
        yield
    finally:
        for handle in handles:
            handle.remove()


@contextmanager
def preserve_state(module: nn.Module, *, training: bool) -> Iterator[None]:
    """Set training or evaluation mode; restore every buffer and every submodule's mode afterwards."""
    modes = [(part, part.training) for part in module.modules()]
    buffers = {name: buffer.clone() for name, buffer in module.named_buffers()}
    module.train(training)
    try:
        yield
    finally:
        for part, mode in modes:
            part.training = mode
        with torch.no_grad():
            for name, buffer in module.named_buffers():
                if name in buffers:
                    buffer.copy_(buffers[name])


@contextmanager
def seeded_rng(key: int, *words: int) -> Iterator[None]:
    """Seed torch's generator from these numbers alone, and restore its state afterwards."""
    seed = rng.bits(rng.streams(key, Purpose.MODULE, *words), 1)
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(int(seed[0, 0]))
        yield
