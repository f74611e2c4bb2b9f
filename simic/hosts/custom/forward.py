"""Forward passes of a custom module with seeds, without side effects on module or random generator.

Shapes: B samples, C channels or classes, D features, P parameters of a seed, L layers.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from simic.contracts.errors import ConfigError
from simic.hosts import rng
from simic.hosts.blueprint_checks import change_of
from simic.hosts.custom.autocast import without_autocast
from simic.hosts.custom.readers import Attachment
from simic.hosts.interfaces import Blueprint, Site
from simic.hosts.rng import Purpose

__all__ = [
    "ActiveSeed",
    "GeneratorStates",
    "LayerHook",
    "LayerObserver",
    "RngStream",
    "check_output",
    "forked_rng",
    "forward",
    "generator_states",
    "grow_output",
    "hooked",
    "is_expanded",
    "preserve_state",
    "seed_generators",
    "seeded_rng",
    "set_generator_states",
]


class LayerObserver(Protocol):
    """Receives what the layers give and what the seeds change, [1, B, *space, D] each."""

    def output(self, layer: int, h: Tensor, /) -> None:
        """Receive a layer's output before its slot."""

    def change(self, slot: int, change: Tensor, h: Tensor, /) -> None:
        """Receive alpha times a seed's change of ``h``; a widening seed changes the outputs of several readers."""


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
    site: Site
    """The site that a seed on the layer has."""
    input_axis: int = 0
    """Axis of the features of the layer's input, if ``readers`` are known."""
    readers: tuple[Attachment, ...] = ()
    """Where widening seeds add, in the order of the site's readers."""


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

    def pass_layer(index: int, _arguments: Any, output: Any) -> Tensor | None:
        hook = hooks[index]
        check_output(hook, output, len(inputs))
        if observer is not None:
            observer.output(index, _features_last(output, hook.axis))
        seed = None if hook.slot is None else seeds.get(hook.slot)
        return None if seed is None or seed.blueprint.is_widening else grow_output(hook, seed, output, observer)

    # A reader may itself be a layer with a slot: its output is widened before the hook of its slot runs.
    with widened(module, hooks, seeds, observer), hooked(module, [hook.name for hook in hooks], pass_layer):
        logits: Tensor = module(inputs)
    return logits


def check_output(hook: LayerHook, output: Any, samples: int) -> None:
    """Raise ConfigError unless a layer's output has the shape of the dry run, for this number of samples."""
    if not isinstance(output, Tensor) or output.shape != (samples, *hook.shape):
        found = tuple(output.shape) if isinstance(output, Tensor) else type(output).__name__
        raise ConfigError(
            f"layer {hook.name!r}: expected an output {(samples, *hook.shape)} as in the dry run, "
            f"found {found}; a layer's output must be a tensor of one shape in every pass"
        )


def grow_output(hook: LayerHook, seed: ActiveSeed, output: Tensor, observer: LayerObserver | None = None) -> Tensor:
    """Return a layer's output [B, ...] with a seed's change, scaled by alpha; the seed is not a widening one.

    The seed computes in the type of its parameters, also within ``torch.autocast``: a blueprint need not know which
    operations lose digits or overflow in 16 bits.
    """
    with without_autocast(output.device):
        h = _features_last(output, hook.axis).to(seed.parameters.dtype)
        change = change_of(seed.blueprint.operator, h, seed.blueprint.delta(seed.parameters, h, seed.noise))
        change = change * seed.alpha
        if observer is not None and hook.slot is not None:
            observer.change(hook.slot, change, h)
        return (h + change).squeeze(0).movedim(-1, hook.axis).contiguous().to(output.dtype)


@contextmanager
def widened(
    module: nn.Module, hooks: Sequence[LayerHook], seeds: Mapping[int, ActiveSeed], observer: LayerObserver | None
) -> Iterator[None]:
    """Add what the widening ``seeds`` compute from their layers' inputs to the outputs of the layers' readers.

    Raises:
        ConfigError: if a reader does not run once, behind the layer, or gives another shape than in the dry run.
    """
    waiting: dict[tuple[int, int], Tensor] = {}
    """By (slot, reader): additions that the reader has not received yet."""
    handles = []

    def read(hook: LayerHook, seed: ActiveSeed, _module: nn.Module, arguments: tuple[Any, ...]) -> None:
        with without_autocast(arguments[0].device):
            # A copy, because the layer may work in place on its input.
            x = arguments[0].clone().movedim(hook.input_axis, -1).contiguous().to(seed.parameters.dtype)
            for index, addition in enumerate(seed.blueprint.additions(seed.parameters[0], x, hook.site)):
                waiting[hook.slot or 0, index] = addition * seed.alpha

    def add(slot: int, index: int, place: Attachment, _module: nn.Module, _arguments: Any, output: Tensor) -> Tensor:
        addition = waiting.pop((slot, index), None)
        h = output.movedim(place.axis, -1)
        if addition is None or addition.shape != h.shape:
            raise ConfigError(f"{place.name!r}: it does not read the layer as in the dry run, so no seed can widen it")
        if observer is not None:
            observer.change(slot, addition.unsqueeze(0), h.unsqueeze(0))
        return output + addition.movedim(-1, place.axis).to(output.dtype)

    try:
        for hook in hooks:
            seed = None if hook.slot is None else seeds.get(hook.slot)
            if hook.slot is None or seed is None or not seed.blueprint.is_widening:
                continue
            layer = module.get_submodule(hook.name)
            handles.append(layer.register_forward_pre_hook(partial(read, hook, seed)))
            for index, place in enumerate(hook.readers):
                part = module.get_submodule(place.name)
                handles.append(part.register_forward_hook(partial(add, hook.slot, index, place)))
        yield
        if waiting:
            slots = sorted({slot for slot, _ in waiting})
            raise ConfigError(f"a layer that reads slot {slots[0]} in the dry run did not run, so no seed can widen it")
    finally:
        for handle in handles:
            handle.remove()


def _features_last(output: Tensor, axis: int) -> Tensor:
    """Return [1, B, *space, D], contiguous, as blueprints expect it."""
    return output.movedim(axis, -1).contiguous().unsqueeze(0)


@contextmanager
def hooked(module: nn.Module, names: Sequence[str], hook: Callable[[int, Any, Any], Any]) -> Iterator[None]:
    """Call ``hook(index, arguments, output)`` after each named layer; a result other than None replaces the output."""

    def call(index: int, _module: nn.Module, arguments: Any, output: Any) -> Any:
        return hook(index, arguments, output)

    handles = []
    try:
        for index, name in enumerate(names):
            handles.append(module.get_submodule(name).register_forward_hook(partial(call, index)))
        yield
    finally:
        for handle in handles:
            handle.remove()


@contextmanager
def preserve_state(module: nn.Module, *, training: bool | None) -> Iterator[None]:
    """Set training or evaluation mode, or neither; restore every buffer and every submodule's mode afterwards."""
    modes = [(part, part.training) for part in module.modules()]
    buffers = {name: buffer.clone() for name, buffer in module.named_buffers()}
    if training is not None:
        module.train(training)
    try:
        yield
    finally:
        for part, mode in modes:
            part.training = mode
        with torch.no_grad():
            for name, buffer in module.named_buffers():
                # An expanded buffer cannot be written to, so no pass has changed it.
                if name in buffers and not is_expanded(buffer):
                    buffer.copy_(buffers[name])


def is_expanded(tensor: Tensor) -> bool:
    """Return whether several elements share one place in memory, as after ``expand``."""
    return any(stride == 0 and size > 1 for stride, size in zip(tensor.stride(), tensor.shape, strict=True))


class GeneratorStates(NamedTuple):
    """States of the generators that a module may draw from."""

    torch: tuple[Tensor, ...]
    """Of the CPU, and of the device unless it is MPS."""
    python: Any
    """Of the module ``random``."""
    numpy: Any
    """Of NumPy's global generator."""


@contextmanager
def forked_rng(device: torch.device) -> Iterator[None]:
    """Restore afterwards what ``generator_states`` returns."""
    python, numpy = random.getstate(), np.random.get_state(legacy=False)  # noqa: NPY002 - that of the module
    try:
        with torch.random.fork_rng(_with_generator(device), device_type=device.type):
            yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)  # noqa: NPY002


def generator_states(device: torch.device) -> GeneratorStates:
    """Return the states of torch's generators, Python's and NumPy's."""
    module = torch.get_device_module(device)
    states = torch.get_rng_state(), *(module.get_rng_state(accelerator) for accelerator in _with_generator(device))
    return GeneratorStates(states, random.getstate(), np.random.get_state(legacy=False))  # noqa: NPY002


def set_generator_states(device: torch.device, states: GeneratorStates) -> None:
    """Set the generators to states from ``generator_states``."""
    module = torch.get_device_module(device)
    torch.set_rng_state(states.torch[0])
    for accelerator, state in zip(_with_generator(device), states.torch[1:], strict=True):
        module.set_rng_state(state, accelerator)
    random.setstate(states.python)
    np.random.set_state(states.numpy)  # noqa: NPY002


def _with_generator(device: torch.device) -> list[torch.device]:
    """Return the device in a list if it has a generator that is set by device; MPS takes no device."""
    return [] if device.type in ("cpu", "mps") else [device]


_CPU = torch.device("cpu")


@contextmanager
def seeded_rng(key: int, *words: int, device: torch.device = _CPU) -> Iterator[None]:
    """Seed the generators as ``seed_generators`` does, and restore them afterwards."""
    with forked_rng(device):
        seed_generators(key, *words, device=device)
        yield


def seed_generators(key: int, *words: int, device: torch.device = _CPU) -> None:
    """Seed all generators that a module on the device may draw from by these numbers alone."""
    seed = int(rng.bits(rng.streams(key, Purpose.MODULE, *words), 1)[0, 0])
    torch.default_generator.manual_seed(seed)
    for accelerator in _with_generator(device):
        module = torch.get_device_module(device)
        with module.device(accelerator):
            module.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed % 2**32)  # noqa: NPY002
