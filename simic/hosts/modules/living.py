"""One host of a user's own: its module, its momenta, and the numbers that belong to its layers.

Shapes: L layers, B samples, C classes.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from math import sqrt
from typing import NamedTuple

import torch
from torch import Tensor, nn

from simic.hosts.modules.checks import check_host, check_labels
from simic.hosts.modules.dry_run import Wiring, wiring_of
from simic.hosts.modules.family import ModuleFamily, ModuleHost, Samples
from simic.hosts.modules.passes import Draw, drawn_for
from simic.hosts.protocols import Part

__all__ = ["LivingHost", "State", "bring_up", "norm_of"]


class State(NamedTuple):
    """Everything of a module that training changes, copied."""

    parameters: dict[str, Tensor]
    buffers: dict[str, Tensor]
    momentum: dict[str, Tensor]


@dataclass
class LivingHost:
    """A host in training."""

    key: int
    spec: ModuleHost
    """What the family gave; its module is never trained."""
    module: nn.Module
    wiring: Wiring
    momentum: dict[str, Tensor]
    """By parameter, scaled by the learning rate."""

    @property
    def trained(self) -> dict[str, nn.Parameter]:
        """Parameters that training moves, by name."""
        return {name: one for name, one in self.module.named_parameters() if one.requires_grad}

    @property
    def batch(self) -> int:
        """Samples of a step."""
        return min(self.spec.batch, len(self.spec.train.labels))

    @property
    def steps(self) -> int:
        """Of an epoch; an incomplete last batch is left out."""
        return len(self.spec.train.labels) // self.batch

    def samples(self, part: Part) -> Samples:
        """Of one part."""
        return (self.spec.train, self.spec.validation, self.spec.test)[part]

    def layer_norms(self, norms: dict[str, float]) -> list[float]:
        """[L] from norms by parameter; a parameter counts for the innermost layer that holds it, if any does."""
        names = [outlet.name for outlet in self.wiring.outlets]
        squares = [0.0] * len(names)
        for name, norm in norms.items():
            holding = [index for index, layer in enumerate(names) if name.startswith(f"{layer}.")]
            if holding:
                squares[max(holding, key=lambda index: len(names[index]))] += norm * norm
        return [sqrt(square) for square in squares]

    @property
    def sample_bytes(self) -> int:
        """Of training and validation samples."""
        return sum(tensor.nbytes for tensor in (*self.spec.train, *self.spec.validation))

    @property
    def state_bytes(self) -> int:
        """Of everything training changes."""
        tensors = [*self.module.parameters(), *self.module.buffers(), *self.momentum.values()]
        return sum(tensor.nbytes for tensor in tensors)

    def weight_norms(self) -> list[float]:
        """[L]"""
        return self.layer_norms({name: norm_of(one) for name, one in self.module.named_parameters()})

    def is_finite(self) -> bool:
        """Parameters and momenta; buffers may hold infinities on purpose, as masks do."""
        tensors = [*self.module.parameters(), *self.momentum.values()]
        return all(bool(tensor.isfinite().all()) for tensor in tensors)

    def remember(self) -> State:
        """A copy on the CPU, where hosts live."""
        return State(
            _copies(dict(self.module.named_parameters())),
            _copies(dict(self.module.named_buffers())),
            _copies(self.momentum),
        )

    def recall(self, state: State) -> None:
        """Be again what is remembered."""
        mine = {**dict(self.module.named_parameters()), **dict(self.module.named_buffers())}
        with torch.no_grad():
            for name, value in {**state.parameters, **state.buffers}.items():
                mine[name].copy_(value)
            for name, value in state.momentum.items():
                self.momentum[name].copy_(value)


def bring_up(family: ModuleFamily, key: int, who: str) -> LivingHost:
    """The host of a key, checked and wired."""
    with drawn_for(key, Draw.BIRTH):
        spec = family.host(key)
    check_host(spec, who)
    # A family that hands out one module twice would otherwise begin the second episode with trained weights.
    module = copy.deepcopy(spec.module)
    for part in module.modules():
        for name, buffer in part.named_buffers(recurse=False):
            # An expanded buffer shares memory within itself and could not be written back.
            setattr(part, name, buffer.contiguous())
    wiring = wiring_of(module, spec, key, who)
    check_labels(spec, wiring.anatomy.classes, who)
    momentum = {name: torch.zeros_like(one) for name, one in module.named_parameters() if one.requires_grad}
    return LivingHost(key, spec, module, wiring, momentum)


def norm_of(tensor: Tensor) -> float:
    """Euclidean."""
    return float(torch.linalg.vector_norm(tensor.detach()))


def _copies(tensors: dict[str, Tensor] | dict[str, nn.Parameter]) -> dict[str, Tensor]:
    return {name: tensor.detach().clone() for name, tensor in tensors.items()}
