"""Training passes of an owner, kept so that a seed can learn alone on them. Shapes: P parameters of a seed."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from simic.contracts.errors import ConfigError
from simic.hosts.custom.autocast import with_plain_forward, without_autocast
from simic.hosts.custom.forward import GeneratorStates, forked_rng, preserve_state, set_generator_states
from simic.hosts.custom.interface import Loss

__all__ = ["KeptPass", "cloned", "isolated_gradient"]


class KeptPass(NamedTuple):
    """A training pass of the owner."""

    arguments: tuple[Any, ...]
    named: dict[str, Any]
    random_states: GeneratorStates | None
    """States before the pass; kept only while a seed learns alone."""
    first: int
    """Samples of the epoch before this pass."""


def isolated_gradient(
    module: nn.Module, kept: KeptPass, labels: Tensor, loss: Loss, parameters: Tensor, like: Tensor
) -> Tensor:
    """Return the gradient [1, P] of the loss in a pass that changes neither the module nor the generators.

    The pass runs without the owner's autocast, so inputs of fewer bits get the type of ``like``, samples of which the
    module takes.

    Raises:
        ConfigError: if a checkpoint of the owner keeps the gradient from the parameters.
    """
    # A probe may find the module in evaluation mode; between backward and step its modes are the owner's.
    training = None if module.training else True
    exact, plain = without_autocast(like.device), with_plain_forward(module)
    with exact, plain, preserve_state(module, training=training), forked_rng(like.device), torch.enable_grad():
        if kept.random_states is not None:
            set_generator_states(like.device, kept.random_states)
        logits = module(*cloned(kept.arguments, like.dtype), **cloned(kept.named, like.dtype))
        value = loss(logits, labels)
        (gradient,) = torch.autograd.grad(value, parameters, allow_unused=True)
    if gradient is not None:
        return gradient
    if _has_reentrant_checkpoint(value):
        raise ConfigError(
            "a seed within torch.utils.checkpoint gets no gradient of its own, because the checkpoint is reentrant; "
            "give it use_reentrant=False"
        )
    return torch.zeros_like(parameters)


def cloned(value: Any, least: torch.dtype | None = None) -> Any:
    """Return a copy of all tensors in nested containers, because a module may work in place on its inputs.

    Numbers of fewer bits than the floating type ``least`` become numbers of that type.
    """
    if isinstance(value, Tensor):
        is_short = least is not None and least.is_floating_point and value.dtype.itemsize < least.itemsize
        copy = value.detach().clone()
        return copy.to(least) if is_short and value.is_floating_point() else copy
    if isinstance(value, dict):
        return {name: cloned(element, least) for name, element in value.items()}
    if isinstance(value, (tuple, list)):
        copies = [cloned(element, least) for element in value]
        return type(value)(*copies) if hasattr(value, "_fields") else type(value)(copies)
    return value


def _has_reentrant_checkpoint(value: Tensor) -> bool:
    """Return whether such a checkpoint took part, whose node in the graph hides all parameters within it."""
    waiting, seen = [value.grad_fn], set()
    while waiting:
        node = waiting.pop()
        if node is None or node in seen:
            continue
        if node.name() == "CheckpointFunctionBackward":
            return True
        seen.add(node)
        waiting += [before for before, _ in node.next_functions]
    return False
