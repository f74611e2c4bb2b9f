"""One custom host: its module, its momenta, and its measurements per layer.

Shapes: L layers, B samples, C classes.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from math import isfinite, sqrt
from typing import NamedTuple

import torch
from torch import Tensor, nn

from simic.hosts.custom.checks import check_host, check_labels, parts_of
from simic.hosts.custom.forward import RngStream, seeded_rng
from simic.hosts.custom.inspect import ModuleLayout, inspect_module
from simic.hosts.custom.interface import Loss, ModuleFamily, ModuleHost, Samples
from simic.hosts.custom.optimiser_state import describe
from simic.hosts.custom.tasks import Task, task_of
from simic.hosts.interfaces import DataSplit

__all__ = ["MOST_SAMPLES", "CustomHost", "HostState", "build_host", "norm_of", "optimiser_of"]


MOST_SAMPLES = 256
"""Samples of a measurement's pass, so that large sets fit into memory."""


class HostState(NamedTuple):
    """Copies of all tensors of a module that training changes."""

    parameters: dict[str, Tensor]
    buffers: dict[str, Tensor]
    momentum: dict[str, Tensor]


@dataclass
class CustomHost:
    """A host in training."""

    key: int
    spec: ModuleHost
    """The specification of the family; its module is never trained."""
    module: nn.Module
    layout: ModuleLayout
    momentum: dict[str, Tensor]
    """By parameter, scaled by the learning rate."""
    chunk: int = MOST_SAMPLES
    """Samples of a measurement's pass."""

    @property
    def trained(self) -> dict[str, nn.Parameter]:
        """Return the trainable parameters by name."""
        return {name: parameter for name, parameter in self.module.named_parameters() if parameter.requires_grad}

    @property
    def task(self) -> Task:
        """Return what the host is trained for."""
        return task_of(self.spec.validation.labels, "validation", self.spec.loss)

    @property
    def loss(self) -> Loss:
        """Return the loss of a batch that training minimises."""
        return self.spec.loss or self.task.loss

    @property
    def batch(self) -> int:
        """Return the number of samples per step."""
        return min(self.spec.batch, len(self.spec.train.labels))

    @property
    def steps(self) -> int:
        """Return the steps per epoch; an incomplete last batch is left out."""
        return len(self.spec.train.labels) // self.batch

    @property
    def parameters(self) -> int:
        """Return the number of trainable parameters without seeds."""
        return sum(parameter.numel() for parameter in self.trained.values())

    def samples(self, part: DataSplit) -> Samples:
        """Return the samples of one split."""
        return (self.spec.train, self.spec.validation, self.spec.test)[part]

    def layer_norms(self, norms: dict[str, float]) -> list[float]:
        """Return norms [L] from norms by parameter; a parameter belongs to the innermost layer that holds it."""
        names = [hook.name for hook in self.layout.hooks]
        squares = [0.0] * len(names)
        for name, norm in norms.items():
            holding = [index for index, layer in enumerate(names) if name.startswith(f"{layer}.")]
            if holding:
                squares[max(holding, key=lambda index: len(names[index]))] += norm * norm
        return [sqrt(square) for square in squares]

    @property
    def sample_bytes(self) -> int:
        """Return the bytes of training and validation samples."""
        return sum(tensor.nbytes for tensor in (*self.spec.train, *self.spec.validation))

    @property
    def state_bytes(self) -> int:
        """Return the bytes of parameters, buffers and momenta."""
        tensors = [*self.module.parameters(), *self.module.buffers(), *self.momentum.values()]
        return sum(tensor.nbytes for tensor in tensors)

    def weight_norms(self) -> list[float]:
        """Return the norm of each layer's weights, [L], without those that hold infinities on purpose, as masks do."""
        norms = {
            name: (norm_of(parameter), parameter.requires_grad) for name, parameter in self.module.named_parameters()
        }
        return self.layer_norms({name: norm for name, (norm, learns) in norms.items() if learns or isfinite(norm)})

    def is_finite(self) -> bool:
        """Return whether what learns is finite; buffers and frozen parameters may hold infinities, as masks do."""
        tensors = [*self.trained.values(), *self.momentum.values()]
        return all(bool(tensor.isfinite().all()) for tensor in tensors)

    def snapshot(self) -> HostState:
        """Return a copy of the state, on the CPU."""
        return HostState(
            _copies(dict(self.module.named_parameters())),
            _copies(dict(self.module.named_buffers())),
            _copies(self.momentum),
        )

    def restore(self, state: HostState) -> None:
        """Restore a copied state."""
        mine = {**dict(self.module.named_parameters()), **dict(self.module.named_buffers())}
        with torch.no_grad():
            for name, value in {**state.parameters, **state.buffers}.items():
                mine[name].copy_(value)
            for name, value in state.momentum.items():
                self.momentum[name].copy_(value)


def build_host(family: ModuleFamily, key: int, who: str, *, with_readers: bool = False) -> CustomHost:
    """Build the host of a key: check it, copy its module and inspect its layers, ``with_readers`` or without.

    Raises:
        ConfigError: if module, layers or settings are invalid.
        DatasetError: if samples are invalid.
    """
    with seeded_rng(key, RngStream.BIRTH):
        spec = family.host(key)
    check_host(spec, who)
    # Without the copy, a family that returns one module twice would begin its second episode with trained weights.
    module = copy.deepcopy(spec.module)
    for part in module.modules():
        for name, buffer in part.named_buffers(recurse=False):
            # An expanded buffer shares memory within itself and could not be written back.
            setattr(part, name, buffer.contiguous())
    if (logits := spec.logits) is not None:
        module.register_forward_hook(lambda _module, _arguments, output: logits(output))
    layout = inspect_module(module, spec, key, who, with_readers=with_readers)
    check_labels(parts_of(spec), layout.topology.classes, who)
    momentum = {
        name: torch.zeros_like(parameter) for name, parameter in module.named_parameters() if parameter.requires_grad
    }
    return CustomHost(key, spec, module, layout, momentum)


def optimiser_of(family: ModuleFamily, key: int) -> str | None:
    """Return the description of the optimiser of a family's host, or None if it trains with SGD."""
    with seeded_rng(key, RngStream.BIRTH):
        spec = family.host(key)
    return None if spec.optimizer is None else describe(spec.optimizer(spec.module))


def norm_of(tensor: Tensor) -> float:
    """Return the Euclidean norm of a tensor."""
    return float(torch.linalg.vector_norm(tensor.detach()))


def _copies(tensors: dict[str, Tensor] | dict[str, nn.Parameter]) -> dict[str, Tensor]:
    return {name: tensor.detach().clone() for name, tensor in tensors.items()}
