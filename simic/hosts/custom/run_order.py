"""The order in which submodules run, found by one pass in evaluation mode that changes nothing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from simic.contracts.errors import ConfigError
from simic.hosts.custom.forward import forked_rng, hooked, preserve_state

__all__ = ["SEVERAL_INPUTS", "last_leaf", "run_order"]

SEVERAL_INPUTS = "a network with several inputs needs a wrapper that takes them out of one tensor"


def run_order(model: nn.Module, names: Sequence[str], inputs: Tensor) -> list[str]:
    """Return ``names`` in the order in which the submodules first run on ``inputs`` [B, ...].

    Raises:
        ConfigError: if the model has no such submodule, one does not run, or the model fails on the inputs.
    """
    known = dict(model.named_modules())
    if missing := [name for name in names if not name or name not in known]:
        some = ", ".join(name for name in list(known)[:40] if name)
        raise ConfigError(f"the model has no submodules {missing}; known ones: {some}")
    ran = dict.fromkeys(_runs(model, names, inputs))
    if idle := [name for name in names if name not in ran]:
        raise ConfigError(f"the submodules {idle} do not run when the model gets a batch; name others")
    return list(ran)


def last_leaf(model: nn.Module, inputs: Tensor) -> str:
    """Return the name of the last submodule that runs, has parameters and has no submodule itself.

    Raises:
        ConfigError: if there is none, or the model fails on ``inputs`` [B, ...].
    """
    leaves = [name for name, part in model.named_modules() if name and _is_leaf(name, part)]
    if not (ran := _runs(model, leaves, inputs)):
        raise ConfigError("the model has no submodule with parameters that could be its head; name one as head")
    return ran[-1]


def _is_leaf(name: str, part: nn.Module) -> bool:
    """Return whether a part with parameters has no submodule; those that compute its own parameters do not count."""
    if "parametrizations" in name.split("."):
        return False
    return {inner for inner, _ in part.named_children()} <= {"parametrizations"} and any(
        True for _ in part.parameters()
    )


def _runs(model: nn.Module, names: Sequence[str], inputs: Tensor) -> list[str]:
    """Return the names of the submodules in the order of their calls."""
    ran: list[str] = []

    def note(index: int, _arguments: Any, _output: Any) -> None:
        ran.append(names[index])

    with preserve_state(model, training=False), forked_rng(inputs.device), torch.no_grad(), hooked(model, names, note):
        try:
            model(inputs.clone())
        except (RuntimeError, ValueError, TypeError, IndexError) as error:
            hint = f"; {SEVERAL_INPUTS}" if isinstance(error, TypeError) else ""
            raise ConfigError(f"the model fails on {len(inputs)} validation samples: {error}{hint}") from error
    return ran
