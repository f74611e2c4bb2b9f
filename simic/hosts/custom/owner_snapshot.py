"""A copy of what an owner's training changes, with which the governor undoes an epoch."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from simic.hosts.custom.forward import is_expanded
from simic.hosts.custom.optimiser_state import copied_state

__all__ = ["OwnerSnapshot", "clear_state", "trained"]


@dataclass
class OwnerSnapshot:
    """Copies of all tensors that training changes, taken before the first training pass that follows."""

    tensors: dict[str, Tensor] | None = None
    """Parameters and buffers of the module, seeds included; None before they are taken."""
    others: dict[Tensor, Tensor] = field(default_factory=dict)
    """Parameters that the optimiser trains and the module does not hold, such as those of a loss."""
    optimiser: dict[Tensor, dict[str, Any]] = field(default_factory=dict)

    def take(self, module: nn.Module, optimiser: Optimizer) -> None:
        """Copy the tensors, on their device."""
        self.tensors = {name: tensor.detach().clone() for name, tensor in _tensors(module).items()}
        state, own = optimiser.state, set(module.parameters())
        self.others = {other: other.detach().clone() for other in trained(optimiser) if other not in own}
        self.optimiser = {
            parameter: copied_state(state[parameter]) for parameter in trained(optimiser) if parameter in state
        }

    def clear(self) -> None:
        """Drop the copies; nothing can be restored then."""
        self.tensors = None
        self.others.clear()
        self.optimiser.clear()

    @torch.no_grad()
    def restore(self, module: nn.Module, optimiser: Optimizer) -> None:
        """Set what was copied back, if anything was."""
        if self.tensors is None:
            return
        tensors = _tensors(module)
        for name, value in self.tensors.items():
            # An expanded buffer cannot be written to, so no training has changed it.
            if name in tensors and not is_expanded(tensors[name]):
                tensors[name].copy_(value)
        for other, value in self.others.items():
            other.copy_(value)
        for parameter in trained(optimiser):
            optimiser.state.pop(parameter, None)
            if parameter in self.optimiser:
                optimiser.state[parameter] = copied_state(self.optimiser[parameter])


def clear_state(optimiser: Optimizer) -> None:
    """Clear the optimiser's state of all parameters."""
    for parameter in trained(optimiser):
        optimiser.state.pop(parameter, None)


def _tensors(module: nn.Module) -> dict[str, Tensor]:
    return {**dict(module.named_parameters()), **dict(module.named_buffers())}


def trained(optimiser: Optimizer) -> Iterator[Tensor]:
    """Return the parameters that the optimiser trains, seeds included."""
    return (parameter for group in optimiser.param_groups for parameter in group["params"])
