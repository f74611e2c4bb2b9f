"""Forward passes of a user's module with seeds in it, and what keeps a pass from leaving anything behind.

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
from simic.hosts import counter_rng
from simic.hosts.counter_rng import Purpose
from simic.hosts.operators import change_of
from simic.hosts.protocols import Blueprint

__all__ = ["Draw", "Grown", "Outlet", "Watch", "drawn_for", "forward", "hooked", "undisturbed"]

Watch = Callable[[int, Tensor, Tensor | None], None]
"""Sees (layer, output in front of the slot, what the seed there changes or None), [1, B, *space, D] each."""


class Draw:
    """What torch's generator is asked for; part of its seed."""

    BIRTH = 0
    TRAINING = 1
    EVALUATION = 2


class Outlet(NamedTuple):
    """How a layer's output looks."""

    name: str
    axis: int
    """Of the features, from the front, samples being axis 0."""
    shape: tuple[int, ...]
    """Of one sample."""
    slot: int | None
    """The slot on it."""


class Grown(NamedTuple):
    """A seed as a pass needs it."""

    blueprint: Blueprint
    parameters: Tensor
    """[1, P]"""
    alpha: float
    noise: Tensor | None = None
    """Uniform [1, B, D], for blueprints that want it in training."""


def forward(
    module: nn.Module,
    outlets: Sequence[Outlet],
    inputs: Tensor,
    seeds: Mapping[int, Grown],
    watch: Watch | None = None,
) -> Tensor:
    """Logits [B, C] with ``seeds`` by slot grown into the module; no hook outlives the call."""

    def pass_layer(index: int, output: Any) -> Tensor | None:
        outlet = outlets[index]
        if not isinstance(output, Tensor) or output.shape != (len(inputs), *outlet.shape):
            found = tuple(output.shape) if isinstance(output, Tensor) else type(output).__name__
            raise ConfigError(
                f"layer {outlet.name!r}: expected an output {(len(inputs), *outlet.shape)} as in the dry run, "
                f"found {found}; a layer's output must be a tensor of one shape in every pass"
            )
        seed = None if outlet.slot is None else seeds.get(outlet.slot)
        if seed is None:
            if watch is not None:
                watch(index, _features_last(output, outlet.axis), None)
            return None
        h = _features_last(output, outlet.axis)
        change = change_of(seed.blueprint.operator, h, seed.blueprint.delta(seed.parameters, h, seed.noise))
        change = change * seed.alpha
        if watch is not None:
            watch(index, h, change)
        return (h + change).squeeze(0).movedim(-1, outlet.axis).contiguous()

    with hooked(module, [outlet.name for outlet in outlets], pass_layer):
        logits: Tensor = module(inputs)
    return logits


def _features_last(output: Tensor, axis: int) -> Tensor:
    """[1, B, *space, D], contiguous, as blueprints expect it."""
    return output.movedim(axis, -1).contiguous().unsqueeze(0)


@contextmanager
def hooked(module: nn.Module, names: Sequence[str], hook: Callable[[int, Any], Any]) -> Iterator[None]:
    """Call ``hook`` with index and output after each named layer; what it returns replaces the output, unless None."""

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
def undisturbed(module: nn.Module, *, training: bool) -> Iterator[None]:
    """In training or evaluation mode; afterwards every buffer and every submodule's mode are what they were."""
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
def drawn_for(key: int, *words: int) -> Iterator[None]:
    """Whatever is drawn from torch's generator in here depends on these numbers alone, and leaves it as it was."""
    seed = counter_rng.bits(counter_rng.streams(key, Purpose.MODULE, *words), 1)
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(int(seed[0, 0]))
        yield
