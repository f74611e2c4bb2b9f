"""The owner's optimiser: the parameter group that a seed joins, and copies of the state of a parameter."""

from __future__ import annotations

import json
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import LBFGS, Optimizer

from simic.contracts.errors import ConfigError
from simic.hosts.custom.forward import LayerHook

__all__ = ["complete_momentum", "copied_state", "describe", "group_of", "is_skipped", "scaled"]


def group_of(optimiser: Optimizer, module: nn.Module, hook: LayerHook, who: str) -> int:
    """Return the index of the parameter group that a slot's seeds join: that of its layer, else of the module.

    Raises:
        ConfigError: if the optimiser takes no further parameters or no hooks, or trains none of the module.
    """
    if isinstance(optimiser, LBFGS):
        raise ConfigError(f"{who}: LBFGS holds one flat vector of parameters, so no seed can join it; use another one")
    try:
        optimiser.register_step_pre_hook(lambda *_: None).remove()
    except AttributeError as error:
        kind = type(optimiser).__name__
        expected = f"{who}: expected an optimiser of torch.optim, or one that takes hooks of its steps as these do"
        if getattr(optimiser, "param_groups", None) is None:
            raise ConfigError(f"{expected}; found {kind}") from error
        raise ConfigError(
            f"{expected}; a {kind} takes none: give the optimiser that it wraps, such as its attribute `optimizer`"
        ) from error
    own = {id(parameter) for parameter in module.get_submodule(hook.name).parameters()}
    known = {id(parameter) for parameter in module.parameters()}
    for wanted in (own, known):
        for index, group in enumerate(optimiser.param_groups):
            if any(id(parameter) in wanted for parameter in group["params"]):
                return index
    raise ConfigError(f"{who}: the optimiser trains no parameter of the module; make it from model.parameters()")


def describe(optimiser: Optimizer) -> str:
    """Return class and settings of an optimiser, and the numbers of parameters in its groups, as JSON."""
    kind = type(optimiser)
    groups = [
        {**group, "params": [parameter.numel() for parameter in group["params"]]} for group in optimiser.param_groups
    ]
    return json.dumps([f"{kind.__module__}.{kind.__qualname__}", groups], sort_keys=True, default=repr)


def copied_state(state: dict[str, Any]) -> dict[str, Any]:
    """Return a copy of an optimiser's state of one parameter."""
    return {name: value.clone() if isinstance(value, Tensor) else value for name, value in state.items()}


def scaled(gradient: Tensor, optimiser: Optimizer) -> Tensor:
    """Return a gradient as the step expects it: a fused one divides all gradients by the scale of its scaler itself."""
    scale: Tensor | None = getattr(optimiser, "grad_scale", None)
    return gradient if scale is None else gradient * scale.to(gradient.device)


def is_skipped(optimiser: Optimizer) -> bool:
    """Return whether a scaler found infinities among the gradients, with which a fused step changes nothing."""
    infinities: Tensor | None = getattr(optimiser, "found_inf", None)
    return infinities is not None and bool(infinities)


def complete_momentum(optimiser: Optimizer, parameter: Tensor) -> None:
    """Give a parameter of fused SGD that is about to move for the first time a momentum of 0, as others have one.

    A fused step takes a momentum from all parameters of a group or from none.
    """
    if parameter.grad is None or "momentum_buffer" in optimiser.state.get(parameter, {}):
        return
    for group in optimiser.param_groups:
        if group.get("fused") and group.get("momentum") and any(member is parameter for member in group["params"]):
            buffers = [optimiser.state.get(member, {}).get("momentum_buffer") for member in group["params"]]
            if any(buffer is not None for buffer in buffers):
                optimiser.state[parameter]["momentum_buffer"] = torch.zeros_like(parameter)
